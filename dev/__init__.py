"""`make dev`: a local deployment of the pipeline, with a producer to watch it by. Not in the wheel."""
