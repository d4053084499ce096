"""Why a plan that was asked for is slower, or fits nowhere."""
