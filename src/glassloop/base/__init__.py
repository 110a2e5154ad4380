"""What everything else stands on: errors, output, files and locks, caches, records, network, children. No other packages."""
