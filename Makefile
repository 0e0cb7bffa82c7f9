# Two commands on a fresh machine: `make demo` and `make test`. Both make .venv themselves.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo serve test check clean help

help:
	@echo "make demo    install, start a server on the bundled model, ask it about charts, show the timeline"
	@echo "make test    install, run every test that needs no GPU"
	@echo "make serve   install, serve the bundled model on http://127.0.0.1:8000"
	@echo "make check   lint"

.venv/.run: pyproject.toml tools/install.py
	@$(PYTHON) tools/install.py
	@touch $@

.venv/.test: pyproject.toml tools/install.py
	@$(PYTHON) tools/install.py --extra test
	@touch .venv/.run $@

demo: .venv/.run
	@$(BIN)/foveate demo

serve: .venv/.run
	@$(BIN)/foveate serve demo

test: .venv/.test
	@$(BIN)/python tools/pillow_images.py
	@$(BIN)/python -m pytest -q

check: .venv/.test
	@$(BIN)/ruff check .

clean:
	rm -rf .venv build *.egg-info
