"""The core store of a cluster with several cores: etcd, reached by a thin client on grpc.aio."""
