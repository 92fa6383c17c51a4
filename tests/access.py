"""What axe-core, the usual checker of accessibility, finds in an open page."""

from pages import unavailable

SERIOUS = ("serious", "critical")
STILL = "* { transition: none !important; animation: none !important; }"  # no color is on its way
# Contrast takes most of axe's time, and words of one color, size and ground have the same: one of
# each kind is looked at. Of equal words of code, too, one is kept. Nothing is preloaded: only rules
# on sound and on turned phones would ask for it, and none of them is serious.
RUN = """async ([colorsOnly, within]) => {
    const told = ({ violations }) =>
        violations.map(v => [v.impact, v.id, v.nodes.map(n => said(n.html))]);
    const said = html => html.replaceAll(' data-kind=""', '').slice(0, 200);
    const seen = new Set();
    for (const word of document.querySelectorAll(`${within} .highlight pre span`))
        if (seen.has(word.className)) word.replaceWith(word.textContent);
        else seen.add(word.className);
    document.querySelectorAll(`${within} .highlight pre`).forEach(code => code.normalize());

    const kinds = new Map();
    const ground = element => {
        for (let e = element; e; e = e.parentElement) {
            const { backgroundColor: color } = getComputedStyle(e);
            if (!/^rgba\\(.*, 0\\)$|transparent/.test(color)) return color;
        }
    };
    for (const element of document.querySelectorAll(`${within} *`)) {
        const words = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        if (!words || !element.checkVisibility({ opacityProperty: true })) continue;
        const { color, fontSize, fontWeight } = getComputedStyle(element);
        const kind = [color, fontSize, fontWeight, ground(element)].join();
        if (!kinds.has(kind)) kinds.set(kind, element);
    }

    const options = { resultTypes: ['violations'], selectors: false, preload: false };
    const chosen = [...kinds.values()];
    if (colorsOnly) {
        const contrast = { ...options, runOnly: ['color-contrast'] };
        return told(await axe.run({ include: chosen }, contrast));
    }
    chosen.forEach(element => element.setAttribute('data-kind', ''));
    const selector = ':is([data-kind], [data-kind] *)';
    axe.configure({ rules: [{ id: 'color-contrast', selector }] });
    // A rule's impact is that of all its findings: what is never serious is not looked for.
    const light = axe._audit.rules.filter(rule => /minor|moderate/.test(rule.impact));
    options.rules = Object.fromEntries(light.map(rule => [rule.id, { enabled: false }]));
    options.rules['label-content-name-mismatch'] = { enabled: true }; // to axe still an experiment
    const found = told(await axe.run(within === 'body' ? document : within, options));
    chosen.forEach(element => element.removeAttribute('data-kind'));
    axe.reset();
    return found;
}"""


def faults(page, *, colors_only: bool = False, within: str = "body") -> list[str]:
    """Return each serious or critical violation ``within`` what a selector names, and where it is.

    Code on the page loses its colors, but for one word of each: look at nothing else afterwards.
    """
    try:
        from axe_playwright_python.base import AXE_FILE_PATH
    except ImportError:
        unavailable("axe-playwright-python is not installed")
    if not page.evaluate("'axe' in window"):
        page.add_style_tag(content=STILL)
        page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    found = page.evaluate(RUN, [colors_only, within])
    return [f"{rule}: {nodes[:3]}" for impact, rule, nodes in found if impact in SERIOUS]
