"""The doors of the leader: MCP, REST, the fellows' API and the console's files."""
