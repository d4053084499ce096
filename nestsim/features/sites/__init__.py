"""Sites far apart: what a wide-area network leaves of the training of all of them."""
