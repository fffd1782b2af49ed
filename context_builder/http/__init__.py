"""HTTP operations on contexts and context configs.

`__all__` lists the modules that other packages may import.
"""

__all__ = ["configs", "context_tests", "contexts"]
