"""The RCRT wire contract over HTTP."""
