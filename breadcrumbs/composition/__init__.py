"""Wires processes from the parts: the store, the HTTP server, context builders and agent runners.

The commands of `crumb` and the functions of `breadcrumbs.hosting` both start their processes here. Import the modules
directly: some of them load the server.
"""
