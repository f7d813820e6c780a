"""The data pipeline's jobs on Spark, each a Python function, a command and an entry for spark-submit; and the benchmark."""
