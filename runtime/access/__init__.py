"""Access control: principals, the policy, redaction and rate limits.

`policy` is the only module that decides what a principal may do. Everything else asks it.
"""

from breadcrumbs.runtime.access.principal import Principal

__all__ = ["Principal"]
