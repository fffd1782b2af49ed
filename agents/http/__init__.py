"""HTTP operations on agents: list those in force, check a definition, try one."""

__all__ = ["definitions"]
