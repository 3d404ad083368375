"""Blocks at the home: what nodes send is checked, written once, published and answered."""
