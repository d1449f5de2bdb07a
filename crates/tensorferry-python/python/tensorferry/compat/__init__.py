"""Other projects' names for what this package does, so that a changed import is the migration."""
