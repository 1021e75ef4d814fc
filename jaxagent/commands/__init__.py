"""What the subcommands of `jaxagent` do."""
