"""What people look at: terminal tables and progress bars."""
