"""Object stores: URLs, the drivers that know them, ranges of objects read, and objects written in parts."""
