"""Access: principals, the policy that decides, redaction, rate limits.

`policy` is the only module that decides what a principal may do. Everything else asks it. `__all__` lists the value and
the modules that other packages may import.
"""

from breadcrumbs.runtime.access.principal import Principal

__all__ = ["Principal", "policy", "rate_limits", "redaction", "saved_selectors"]
