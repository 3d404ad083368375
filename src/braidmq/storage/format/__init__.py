"""Bytes on disk, frozen by version: once released, a format changes only by a new version beside the old one."""
