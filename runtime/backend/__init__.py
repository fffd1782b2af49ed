"""The Redis server or cluster behind the store: sockets, commands, scripts and the embedded server.

`connection.py` defines the interface, `standalone.py` and `cluster.py` implement it.
"""
