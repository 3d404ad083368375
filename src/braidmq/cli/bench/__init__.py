"""``braidmq bench``: a load generator. It builds and parses packets in batches, so that Python keeps up with a fast broker."""
