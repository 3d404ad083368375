"""``braidmq bench``: a load generator. Frames are made and read in batches, so that Python keeps up with a fast broker."""
