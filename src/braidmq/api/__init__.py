"""The HTTP listener and the control socket."""
