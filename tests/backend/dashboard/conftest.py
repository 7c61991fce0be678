"""The fixtures of a gateway in this process, and of a browser."""

import shutil

import pytest

from tests.backend.gateway_lab import client, gateway, owner, running_gateway, spec

__all__ = ["chromium", "client", "gateway", "owner", "running_gateway", "spec"]


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
