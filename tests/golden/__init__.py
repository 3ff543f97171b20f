"""What must not change while the code is rewritten: bytes sent upstream, bytes to the client, documents of the API.

Synthetic sessions of every kind are sent through the proxy as a process of its own. Nothing here imports the package
`proxy`, so that no rename and no move can change what is asked. `python -m tests.golden check` runs them again.
"""
