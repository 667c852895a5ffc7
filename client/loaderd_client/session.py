"""The client's half of the protocol, pure: which batch comes next, what the daemon must be told, which slots are free."""
