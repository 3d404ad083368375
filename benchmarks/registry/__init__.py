"""How a cluster decides who owns a client id: the linear registry and the old way compared, in turn."""
