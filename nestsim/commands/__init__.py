"""What commands call and what that returns: the tasks, reports and notes of all."""
