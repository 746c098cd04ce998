"""One module per framework: how a stream's numbers reach what that framework draws."""
