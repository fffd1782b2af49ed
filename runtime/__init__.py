"""The breadcrumb, its store, its workers and its HTTP API.

All other packages build on this one. It imports none of them.
"""
