# Thin names over scripts/. `make demo ARGS=--keep` passes words on.
.PHONY: demo test check

demo:
	scripts/demo $(ARGS)

test:
	scripts/test $(ARGS)

check:
	scripts/check
