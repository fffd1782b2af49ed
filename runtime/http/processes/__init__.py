"""Several API processes on one port: shared counts, snapshots of metrics, and their sum."""

__all__ = ["group", "merging", "port", "shared_memory"]
