"""Access control: principals, the policy, redaction, rate limits.

Only `policy` decides what a principal may do. All other code calls it. `__all__` lists the value and the modules that
other packages may import.
"""

from breadcrumbs.runtime.access.principal import Principal

__all__ = ["Principal", "policy", "rate_limits", "redaction", "saved_selectors"]
