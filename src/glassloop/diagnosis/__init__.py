"""What is wrong in the rows of a data set, what to do about it, and what more rows would bring."""
