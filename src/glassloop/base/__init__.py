"""What everything else stands on: errors, output, files, locks, caches, records, stages. The standard library only."""
