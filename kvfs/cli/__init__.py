"""The `kvfs` command: one file a noun, `render` the only formatter, `exit_codes` the only table of exit codes."""
