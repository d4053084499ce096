"""How long operators take on an accelerator, from its rates or from measurements."""
