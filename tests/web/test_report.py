"""The page of `benchd report` in Chromium: it opens from a file with the network off, asks for nothing
but itself, draws every chart, in light and dark, narrow and printed, and hostile texts stay texts."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import report_kit as kit  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None

MISSING = [name for name, there in (("chromium", BROWSER), ("chromium-driver", DRIVER),
                                    ("python3-selenium", webdriver),
                                    ("libjs-chart.js", pathlib.Path("/usr/share/javascript/chart.js").is_dir()))
           if not there]
# One browser at a time: it takes more processor and memory than the pages.
pytestmark = [pytest.mark.xdist_group("browser"),
              pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]

# What differs from a canvas's most frequent pixel: lines, letters, bars.
DRAWN = """
return Array.from(document.querySelectorAll('canvas')).map(function (canvas) {
    if (!canvas.width || !canvas.height)
        return [canvas.id, 0];
    var data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    var counts = new Map(), most = 0;
    for (var i = 0; i < data.length; i += 4) {
        var key = data[i] + ',' + data[i + 1] + ',' + data[i + 2] + ',' + data[i + 3];
        var n = (counts.get(key) || 0) + 1;
        counts.set(key, n);
        most = Math.max(most, n);
    }
    return [canvas.id, data.length / 4 - most];
});
"""
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\u2028\u202e"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a whole ranked run, beside two others, with contract and roofline."""
    folder = tmp_path_factory.mktemp("report")
    sealed = hashlib.sha256(kit.TRACK.read_bytes()).hexdigest()
    score = kit.write(folder / "score.json", kit.official(contract=sealed))
    same = kit.write(folder / "identical-tree.json", kit.official(seed=9, gain=0))
    slower = kit.write(folder / "slower-tree.json", kit.official(seed=11, gain=-0.03))
    bench = kit.write(folder / "bench.json", kit.bench())
    return make(score, "--pairs", same, "--pairs", slower, "--contract", kit.TRACK, "--roofline", bench)


def make(score, *flags):
    out = score.with_suffix(".html")
    done = subprocess.run([kit.BUILD / "benchd", "report", score, "--out", out, *flags],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def browser():
    options = Options()
    options.binary_location = BROWSER
    # Everything that is not the file fails at once; as root there is no sandbox of its own.
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
                 "--force-device-scale-factor=1", "--proxy-server=127.0.0.1:9"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service(DRIVER), options=options)
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", {
        "offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1})
    yield driver
    driver.quit()


def show(driver, path, scheme="light", width=1200, height=900, media=""):
    """Opens a page; what it asked for and what it complained of."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]})
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(path.as_uri())
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return asked, driver.get_log("browser")


def drawn(driver):
    return dict(driver.execute_script(DRAWN))


def background(driver):
    return driver.execute_script("return getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("scheme, width, paper", [
    ("light", 1200, "rgb(255, 255, 255)"), ("dark", 1200, "rgb(20, 23, 27)"),
    ("light", 360, "rgb(255, 255, 255)"), ("dark", 360, "rgb(20, 23, 27)")])
def test_every_chart_has_drawn(browser, page, scheme, width, paper):
    asked, complaints = show(browser, page, scheme, width)
    assert set(asked) == {page.as_uri()}, "the page asks for something else than itself"
    assert complaints == []
    assert background(browser) == paper
    canvases = drawn(browser)
    assert len(canvases) == page.read_text().count("<canvas ")
    assert len(canvases) >= 12
    assert {name: n for name, n in canvases.items() if n < 300} == {}
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width, "the page scrolls sideways"


def test_a_canvas_that_is_not_drawn_is_seen(browser, page):
    """The check itself can fail."""
    show(browser, page)
    browser.execute_script("var c = document.getElementById('chart-0'); c.width = c.width;")
    assert drawn(browser)["chart-0"] == 0


def test_charts_follow_the_colour_scheme(browser, page):
    show(browser, page, "light")
    light = browser.execute_script("return document.getElementById('chart-0').toDataURL()")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    # The page hears of it with the next frame.
    WebDriverWait(browser, 20).until(
        lambda b: b.execute_script("return document.getElementById('chart-0').toDataURL()") != light)
    assert background(browser) == "rgb(20, 23, 27)"


def test_a_policy_that_lets_nothing_else_run(browser, page):
    """A script, a style and a request added later are all refused by the page's own policy."""
    show(browser, page)
    browser.execute_script("""
        var s = document.createElement('script'); s.textContent = "document.title = 'owned'";
        document.body.appendChild(s);
        var i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x.png';
        document.body.appendChild(i);
    """)
    assert browser.title != "owned"
    refused = []

    def both(driver):
        refused.extend(entry["message"] for entry in driver.get_log("browser"))
        return any("script-src" in text for text in refused) and \
            any("img-src" in text or "default-src" in text for text in refused)

    WebDriverWait(browser, 20).until(both, f"what the policy refused: {refused}")
    assert browser.title != "owned"


def test_keyboard(browser, page):
    show(browser, page)
    canvas = browser.find_element(By.ID, "chart-0")
    browser.execute_script("arguments[0].focus()", canvas)
    assert browser.switch_to.active_element.get_attribute("id") == "chart-0"
    canvas.send_keys(Keys.ARROW_RIGHT)
    first = browser.find_element(By.ID, "live").get_attribute("textContent")
    canvas.send_keys(Keys.ARROW_RIGHT)
    second = browser.find_element(By.ID, "live").get_attribute("textContent")
    canvas.send_keys(Keys.ARROW_DOWN)
    other = browser.find_element(By.ID, "live").get_attribute("textContent")
    assert first.startswith("control: ") and second.startswith("control: ") and first != second
    assert other.startswith("candidate: ")
    canvas.send_keys(Keys.ESCAPE)
    assert browser.find_element(By.ID, "live").get_attribute("textContent") == ""
    summary = browser.find_element(By.CSS_SELECTOR, "#metrics summary")
    browser.execute_script("arguments[0].focus()", summary)
    summary.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, "#metrics details").get_attribute("open") == "true"


def test_every_chart_has_a_name_and_a_table(browser, page):
    show(browser, page)
    for canvas in browser.find_elements(By.TAG_NAME, "canvas"):
        caption = browser.find_element(By.ID, canvas.get_attribute("aria-labelledby"))
        assert caption.text
        section = canvas.find_element(By.XPATH, "ancestor::section")
        assert section.find_elements(By.TAG_NAME, "table"), section.get_attribute("id")


def test_printed(browser, page):
    """On paper the page is light, whatever the screen is, and the folded tables are open."""
    show(browser, page, "dark")
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.find_element(By.CSS_SELECTOR, "#metrics details").get_attribute("open") == "true"
    assert {name: n for name, n in drawn(browser).items() if n < 300} == {}
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.find_element(By.CSS_SELECTOR, "#metrics details").get_attribute("open") is None
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(pdf["data"]) > 20000
    show(browser, page, "dark", media="print")
    assert background(browser) == "rgb(255, 255, 255)"


def test_hostile_texts_stay_texts(browser, tmp_path):
    score = kit.official()
    metrics = score["metrics"]
    for key in ("engine_device", "runner_id", "commit", "timestamp", "baseline_source", "official_pair_combine"):
        metrics[key] = HOSTILE
    for record in metrics["gates"]:
        record["leg"] = HOSTILE
        record["temperature"]["reader"] = HOSTILE
        record["telemetry"]["throttled"] = True
        record["telemetry"]["throttle_reasons"] = [HOSTILE]
    bench = kit.bench()
    bench["decode"][0]["parts"][HOSTILE] = bench["decode"][0]["parts"].pop("head")
    bench["decode"][0]["sentence"] = HOSTILE
    page = make(kit.write(tmp_path / "score.json", score), "--roofline",
                kit.write(tmp_path / "bench.json", bench))
    asked, complaints = show(browser, page)
    assert set(asked) == {page.as_uri()}
    assert complaints == []
    assert browser.title == "Report of score.json"
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert len(browser.find_elements(By.CSS_SELECTOR, "script:not([type])")) == 2
    assert "document.title='owned'" in browser.find_element(By.ID, "identity").text
    assert {name: n for name, n in drawn(browser).items() if n < 300} == {}


@pytest.mark.parametrize("name, score", [
    ("local", kit.document(prefill_seconds_per_token=2e-4, decode_seconds_per_token=3e-4)),
    ("failed", kit.document(passed=False, passed_correctness=False, error="TokenMismatch: at step 4")),
    ("gates-only", kit.document()),
    ("blocks", kit.document(score=1.1, **kit.BLOCKS)), ("ranked-blocks", kit.official_blocks())])
def test_other_scores(browser, tmp_path, name, score):
    page = make(kit.write(tmp_path / f"{name}.json", score))
    asked, complaints = show(browser, page)
    assert set(asked) == {page.as_uri()} and complaints == []
    assert browser.find_element(By.ID, "verdict").text
    assert {id: n for id, n in drawn(browser).items() if n < 300} == {}


def test_picture_for_the_docs(tmp_path):
    """The picture in docs/ is of a measured run, and can be taken again."""
    run, out = kit.ROOT / "examples" / "ranked-run", tmp_path / "report.png"
    done = subprocess.run([kit.ROOT / "tools" / "report-picture", run / "score.json", "--contract",
                           run / "contract.json", "--out", out], env={**os.environ, "BUILD": str(kit.BUILD)},
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    picture = out.read_bytes()
    assert json.loads((run / "benchmark-integrity.json").read_text())["score_sha256"] == hashlib.sha256(
        (run / "score.json").read_bytes()).hexdigest()
    kept = kit.ROOT / "docs" / "images" / "report.png"
    assert kept.read_bytes()[:8] == picture[:8] and kept.stat().st_size < 200 * 1024
