"""Which ranges a read covers, their estimated size, and how they are divided into parts."""
