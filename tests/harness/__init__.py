"""What the tests that talk to a broker from outside share: the cache of foreign tools, brokers to start, checks to count."""
