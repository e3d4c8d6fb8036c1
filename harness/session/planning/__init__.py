"""The parts of a plan of a pipeline's models; `harness.session.model_plan` joins them."""
