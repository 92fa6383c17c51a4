// The calculators of the page explore. tools/explore.py puts before it the formulas, made from
// utils/cost.py, and BOOK, what they are fed with. Nothing is computed here but how it looks.
(() => {
  const OWN = "my own", SVG = /^(svg|circle|line|polyline|text|title|g)$/;
  const h = (tag, given = {}, ...children) => {
    const e = SVG.test(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(given))
      if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
      else if (value === true) e.setAttribute(key, "");
      else if (value !== false && value !== undefined) e.setAttribute(key, value);
    e.append(...children.flat(9).filter((c) => c !== null && c !== false));
    return e;
  };
  const gib = (bytes) => (bytes / GIB).toFixed(1);
  const many = (n) => String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const three = (n) => (n < 999.5 ? n.toPrecision(3) : many(n.toFixed(0))); // digits, or all of them
  const percent = (part) => `${(100 * part).toFixed(0)}%`;
  const link = (page, text) => h("a", { href: `${page}.html` }, text);
  const table = (caption, head, rows) => h("div", { class: "explore-wide", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head.map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, rows.map(([first, ...rest]) => h("tr", {}, h("th", { scope: "row" }, first), rest.map((t) => h("td", {}, t)))))));
  const out = (name, text) => h("span", { "data-out": name }, text);

  // --- figures -----------------------------------------------------------------------------------
  const bar = (label, parts, whole, limit) => {
    const wide = Math.max(whole, limit || 0) || 1;
    return h("div", { class: "explore-bar", role: "img", "aria-label": label },
      parts.map(([name, size], i) => h("span", { class: `part-${i}`, style: `width:${(100 * size) / wide}%`, title: name })),
      limit ? h("b", { style: `left:${(100 * limit) / wide}%` }) : null);
  };
  const figure = (label, marks, caption) => h("figure", {},
    h("svg", { viewBox: "0 0 360 200", role: "img", "aria-label": label }, marks), h("figcaption", {}, caption));
  const word = (x, y, text, anchor = "middle") => h("text", { x, y, "text-anchor": anchor }, text);
  const dots = (label, groups, caption) => {
    const names = Object.keys(groups), step = 150 / names.length;
    const x = (off) => 228 + 150 * Math.max(-0.73, Math.min(0.73, off));
    return figure(label, [
      [-0.7, -0.35, 0, 0.35, 0.7].map((off) => [h("line", { x1: x(off), x2: x(off), y1: 8, y2: 165, class: off ? "grid" : "axis" }),
        word(x(off), 182, `${off > 0 ? "+" : ""}${100 * off}%`)]),
      word(228, 197, "computed, against measured"),
      names.map((name, i) => [word(112, 12 + step * (i + 0.55), name, "end"),
        groups[name].map(([says, was, what], j) => h("circle", { cx: x(says / was - 1), cy: 8 + step * (i + 0.5) + (j % 5 - 2) * step / 12,
          r: 3.5, class: `part-${i}` }, h("title", {}, `${what || name}: computed ${says}, measured ${was}`)))]),
    ], `${names.map((name) => {
      const off = groups[name].map(([says, was]) => says / was - 1);
      return `${name}: ${(100 * Math.min(...off)).toFixed(1)}% to ${(100 * Math.max(...off)).toFixed(1)}%`;
    }).join("; ")}. ${caption}`);
  };
  const axes = (label, [x0, x1], [y0, y1], xs, ys, xlabel, ylabel, draw) => {
    const x = (v) => 50 + (285 * Math.log(v / x0)) / Math.log(x1 / x0);
    const y = (v) => (y1 > 2 ? 155 - (135 * Math.log(Math.max(v, y0) / y0)) / Math.log(y1 / y0) : 155 - 135 * v);
    return [label, [xs.map((v) => [h("line", { x1: x(v), x2: x(v), y1: 20, y2: 155, class: "grid" }), word(x(v), 171, many(v))]),
      ys.map((v) => [h("line", { x1: 50, x2: 335, y1: y(v), y2: y(v), class: "grid" }), word(45, y(v) + 4, y1 > 2 ? many(v) : percent(v), "end")]),
      word(200, 189, xlabel), word(2, 11, ylabel, "start"), draw(x, y)]];
  };

  // --- the calculators: what is asked, and what is said ------------------------------------------
  const number = (label, unit = "", min = 1, whole = true) => ({ label, unit, min, whole });
  const choice = (label, options, unit = "") => ({ label, options, unit });
  const yes = (label) => ({ label, yes: true });
  const CARDS = Object.fromEntries(BOOK.cards.map(([name, ...values]) => [name, values]));
  const FORMATS = { float32: 2, TF32: 3, bfloat16: 4, float16: 5 };
  const shape = ({ source, ...values }) => values;
  const SHAPES = Object.fromEntries(Object.entries(BOOK.models).map(([name, model]) => [name, shape(model)]));
  const SIZE = { layers: number("layers"), width: number("width"), heads: number("heads"), kv: number("heads of keys and values"),
    hidden: number("width of the MLP"), vocabulary: number("words"), gated: yes("gated MLP, RMSNorm (as Llama)"), tied: yes("embedding is the last layer, too") };

  const fitting = {
    id: "will-it-fit", key: "fit",
    start: { ...BOOK.plain, ...SHAPES[BOOK.model], model: BOOK.model, on: BOOK.card, card: CARDS[BOOK.card][0] },
    groups: [
      ["Your case", { model: choice("model", [...Object.keys(SHAPES), OWN]), on: choice("card", [...Object.keys(CARDS), OWN]), task: choice("to do", ["training", "serving"]),
        batch: number("sequences", "a step"), length: number("length", "tokens each") }],
      ["How it is trained", { method: choice("train", ["full", "LoRA", "4-bit LoRA"]), rank: number("rank", "of LoRA"),
        precision: choice("precision", ["float32", "autocast", "bfloat16"]),
        optimizer: choice("optimizer", ["AdamW", "AdamW fused", "AdamW 8-bit", "SGD momentum", "SGD", "Adafactor"]),
        together: number("sequences in one pass", "fewer: accumulation"), slice: choice("loss", [0, 512, 2048], "tokens a slice, 0: whole"),
        checkpoint: yes("checkpoint every block"), host: yes("averages in host memory"), early: yes("step in the backward pass"),
        named: yes("a variable holds the logits") }, { fold: true, when: (s) => s.task === "training" }],
      ["How it is served", { weights: choice("weights", ["16 bits", "8 bits", "4 bits"]) }, { when: (s) => s.task === "serving" }],
      ["Shape of the model", SIZE, { fold: true }],
      ["Memory, several GPUs", { card: number("memory", "GiB", 0.1, false), shard: choice("FSDP2 over", [1, 2, 4, 8, 16, 32, 64], "GPUs"),
        tensor: choice("each layer split over", [1, 2, 4, 8], "GPUs") }, { fold: true }],
    ],
    filled: (s, changed) => ({ ...s, ...(changed === "model" && SHAPES[s.model]), ...(changed === "on" && CARDS[s.on] && { card: CARDS[s.on][0] }),
      ...(changed in SIZE && { model: OWN }), ...(changed === "card" && { on: OWN }),
      ...(changed === "batch" && { together: s.batch }) }),
    derived: (s) => [...(s.model === OWN ? [] : Object.keys(SIZE)), ...(s.on === OWN ? [] : ["card"]), ...(s.together === s.batch ? ["together"] : [])],
    wrong: (s) => wrong(s),
    says(s, apply) {
      const all = { ...s, ...BOOK.limits }, found = fit(all), names = Object.entries(found.parts);
      const room = found.peak * (BOOK.limits.cached - 1);
      const parts = [...names, ["PyTorch's cache", room], ["CUDA itself", BOOK.limits.context]];
      const same = (set) => Object.entries(set).every(([name, value]) => s[name] === value), ways = BOOK.ways[s.task];
      const tried = [...(ways.some(([, set]) => same(set)) ? [] : [["as set", {}]]), ...ways].map(([name, set, page]) => {
        const from = { ...all, ...set }, plan = !wrong(from) && advice(from, BOOK.remedies[s.task]);
        const on = plan ? plan.chosen.filter((r) => !plan.out.includes(r.name)) : [], to = switched(from, on, []);
        return { name, page, plan, fits: plan && plan.says === "fits", on, to: { ...to, together: Math.min(to.together, to.batch) } };
      });
      const one = tried.filter((t) => t.fits && !t.name.includes("GPUs")), remedies = (n) => `${n} ${n === 1 ? "remedy" : "remedies"}`;
      const status = `${s.model} (${(found.all / 1e9).toFixed(2)} billion parameters), as set, needs ${gib(found.held)} GiB and ${found.says} on ${s.card} GiB.` +
        (found.says === "fits" ? "" : one.length ? ` One such card can ${one.map((t) => `${t.name}, with ${remedies(t.on.length)}`).join("; or ")}.` : " No remedy here is enough.");
      return { status, body: [
        bar(`${gib(found.held)} of ${s.card} GiB`, parts, found.held, s.card * GIB),
        table("By part, on each GPU, when the step needs most", ["part", "GiB"], [...parts.map(([name, size], i) => [[h("i", { class: `swatch part-${i}` }), name], out(name, gib(size))]).filter((_, i) => parts[i][1]),
          ["all", out("held", gib(found.held))]]),
        h("h3", {}, `How to make it fit on ${s.card} GiB: remedies, cheapest first`),
        h("ol", { class: "explore-ways" }, tried.map(({ name, page, plan, fits, on, to }) => h("li", {}, page ? link(page, name) : name,
          `: ${plan ? `${gib(plan.held)} GiB, ${plan.says}` : wrong(to)} `, fits && h("button", { type: "button", "aria-label": `set: ${name}`, onclick: () => apply(to) }, "set"),
          fits && h("ul", {}, on.map((r) => h("li", {}, link(r.page, r.name), `: ${r.price}`)))))),
        h("p", {}, "Prices: a step of GPT-2 small, H200, if nothing else is said. ", BOOK.models[s.model] && ["Shape: ", h("a", { href: `https://huggingface.co/${BOOK.models[s.model].source}` }, "config.json"), "."]),
      ], beside: s.task === "serving" ? h("p", {}, "Serving was not measured.")
        : dots("How far the formula is off", BOOK.peaks, "The first five: this book, H200. Others: published.") };
    },
  };

  const WHY = { arithmetic: "arithmetic", memory: "memory", python: "Python, which launches the kernels", waiting: "data or other GPUs", unclear: "no single thing: unclear", "neither roof": "neither roof" };
  const binding = {
    id: "what-binds-my-step", key: "step",
    start: { ...BOOK.step, launch: BOOK.launch, peak: CARDS[BOOK.step.card][FORMATS[BOOK.step.format]], bandwidth: CARDS[BOOK.step.card][1] },
    groups: [
      ["GPU", { card: choice("card", [...Object.keys(CARDS), OWN]), format: choice("arithmetic in", Object.keys(FORMATS)),
        peak: number("peak", "TFLOP/s", 0.001, false), bandwidth: number("bandwidth", "GB/s", 0.001, false) }],
      ["Your step", { step: number("it takes", "ms", 0.000001, false), tflop: number("operations", "TFLOP", 0, false), gigabytes: number("memory traffic", "GB", 0, false),
        launches: number("kernels", "launched", 0), launch: number("host", "µs a kernel", 0, false), waiting: number("GPU waits for data or other GPUs", "ms", 0, false) }],
    ],
    paste: "or paste what python -m utils.bounds TRACE --json prints",
    filled(s, changed) {
      const card = CARDS[s.card], peak = card && card[FORMATS[s.format]];
      if (changed === "card" || changed === "format") return card ? { ...s, bandwidth: card[1], peak: peak || card[2], format: peak ? s.format : "float32" } : s;
      return changed === "peak" || changed === "bandwidth" ? { ...s, card: OWN } : s;
    },
    derived: (s) => (s.card === OWN ? [] : ["peak", "bandwidth"]),
    wrong: (s) => (s.waiting > s.step ? "The GPU cannot wait longer than the step takes." : ""),
    pasted(text, s) {
      const said = JSON.parse(text), device = said.evidence.device || "";
      const is = (name) => name.split(" ").every((part) => part === "SXM" || device.includes(part));
      const card = Object.keys(CARDS).find(is) || s.card;
      const next = this.filled({ ...s, card }, "card");
      const numbers = counted(said, next.peak, next.bandwidth);
      if (!Object.values(numbers).every(Number.isFinite)) throw new Error();
      return [{ ...next, ...numbers }, `${said.bound}: ${said.reason}. Next: ${said.next}`, said.bound];
    },
    says(s, apply, heard) {
      const found = binds(s), [next, page] = BOOK.bounds[found.bound], speed = (1e3 * s.tflop) / s.step;
      const intensity = s.gigabytes > 0 ? (1e3 * s.tflop) / s.gigabytes : 0, ridge = (1e3 * s.peak) / s.bandwidth;
      const name = { "other GPUs": "waiting", data: "waiting", "neither roof": "unclear" };
      const count = (bound, at) => { const [r, n] = (BOOK.trials[name[bound] || bound] || [0, 0, 0, 0]).slice(at); return n ? `${r} of ${n}` : "none"; };
      const status = `Your step waits for ${WHY[found.bound]}. It should take at least ${found.least.toFixed(2)} ms; you measured ${s.step} ms.`;
      const right = [0.1, 1, 10, 100, 1000, 10000], tall = [0.1, 1, 10, 100, 1000];
      return { status, body: [
        heard[0] && h("p", {}, h("strong", {}, "The profile says "), heard[0], ` (In the trials, this answer was right in ${count(heard[1], 0)}.)`),
        table("Milliseconds, if nothing else took time", ["what", "ms"], Object.entries(found.ms).map(([key, ms], i) => [[h("i", { class: `swatch part-${i}` }), WHY[key]], out(key, ms.toFixed(3))])),
        h("p", {}, h("strong", {}, "First remedy: "), link(page, next), ". ", `In the trials, the answer “${found.bound}” from four numbers was right in `, out("right", count(found.bound, 2)), "."),
        figure(...axes(`Roofline of ${s.peak} TFLOP/s and ${s.bandwidth} GB/s, with your step`, [0.1, 10000], [0.01, 10000], right, tall, "FLOP per byte", "TFLOP/s", (x, y) => [
          h("polyline", { points: [0.1, ridge, 10000].map((v) => `${x(v)},${y(Math.min(s.peak, (v * s.bandwidth) / 1e3))}`).join(" "), class: "roof" }),
          intensity > 0 && speed > 0 && [h("circle", { cx: x(Math.min(1e4, Math.max(0.1, intensity))), cy: y(speed), r: 5, class: "part-1" }),
            word(x(Math.min(3e3, Math.max(0.3, intensity))), y(speed) - 9, "your step")]]),
          `The roof: bandwidth, then peak, of the datasheet. Your step: ${three(intensity)} FLOP per byte, ${three(speed)} TFLOP/s, ${percent(speed / s.peak)} of the peak.`),
      ] };
    },
  };

  const crowding = {
    id: "how-many-gpus-pay", key: "gpus", start: { ...BOOK.crowd },
    groups: [
      ["Model", { parameters: number("parameters", "billion", 0.001, false), layers: number("layers"), width: number("width"), context: number("length", "tokens"), recompute: yes("checkpointing") }],
      ["Training", { tokens: number("tokens", "a step"), way: choice("spread by", ["DDP", "FSDP2", "FSDP2 x tensor 8", "tensor 8 x pipeline 8"]),
        together: number("sequences in one pass"), parts: number("stages on each GPU") }],
      ["GPUs and links", { tflops: number("one GPU reaches alone", "TFLOP/s: measure it", 0.001, false), inside: number("within a machine of 8", "GB/s", 0.001, false),
        between: number("between machines, each GPU", "GB/s", 0.001, false), latency: number("a message takes", "µs", 0.001, false) }],
    ],
    filled: (s) => s, derived: () => [],
    wrong: (s) => (s.tokens < s.context ? "A step needs at least one sequence: tokens a step below the length." : ""),
    says(s) {
      const counts = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384].filter((n) => n <= copies(s));
      const most = paying(s, counts), rows = [1, ...counts].map((n) => [n, crowd(s, n)]), alone = rows[0][1].step, last = rows[rows.length - 1][0];
      const at = rows.find(([n]) => n === most)[1];
      return { status: `Up to ${many(most)} GPUs every doubling makes the step at least 1.5 times as fast: ${three(at.step)} s with ${many(most)}, ${three(alone)} s with one.`, body: [
        figure(...axes("Part of the step that computes, by GPUs", [1, Math.max(2, last)], [0, 1], [1, 8, 64, 512, 4096].filter((n) => n <= last), [0, 0.5, 1], "GPUs", "computing", (x, y) => [
          h("polyline", { points: rows.map(([n, r]) => `${x(n)},${y(r.part)}`).join(" "), class: "roof" }), rows.map(([n, r]) => h("circle", { cx: x(n), cy: y(r.part), r: 3.5, class: "part-0" }))]),
          `Computed. A step has ${many(Math.floor(s.tokens / s.context))} sequences. More GPUs would have no work.`),
        table("By number of GPUs", ["GPUs", "step [s]", "times one GPU", "computing", "weights, gradients, AdamW on each [GiB]"], rows.map(([n, r]) => [many(n), out(`step-${n}`, three(r.step)), three(alone / r.step), out(`part-${n}`, percent(r.part)), gib(r.bytes)])),
      ], beside: dots("How far the cost model is off", BOOK.misses,
          "Ours: ms of a step on H200s. Published: TFLOP/s, one constant fitted.") };
    },
  };

  // --- forms, the URL, and what is wrong with an input -------------------------------------------
  const parse = (field, text) => {
    if (field.yes) return text;
    if (field.options) return field.options.find((o) => String(o) === text);
    const plain = /^\d{1,3}(,\d{3})+(\.\d+)?$/.test(text.trim()) ? text.replace(/,/g, "") : text.trim();
    const value = plain === "" ? NaN : Number(plain), least = field.min;
    return Number.isFinite(value) && value >= least && value <= 1e15 && (!field.whole || Number.isInteger(value)) ? value : undefined;
  };
  const complaint = (field, text) => text.trim() === "" ? `Please fill in ${field.label}.`
    : `“${text.slice(0, 20)}” is not ${field.whole ? "a whole number" : "a number"} ${field.min > 0 ? "above 0" : "from 0 on"}: ${field.label}${field.unit && `, ${field.unit}`}.`;

  const build = (calculator) => {
    const { id, key, start, groups } = calculator, place = document.querySelector(`section#${id} > p`);
    if (!place) return;
    const fields = Object.assign({}, ...groups.map(([, of]) => of)), inputs = {};
    let state = { ...start }, heard = [], later;
    const status = h("p", { role: "status", class: "explore-status" }), body = h("div", { class: "explore-body" }), beyond = h("div", { class: "explore-body" });
    const row = (name, field) => {
      const at = `${key}-${name}`, about = { id: at, name: `${key}.${name}`, "aria-describedby": `${at}-wrong` };
      const input = inputs[name] = field.yes ? h("input", { ...about, type: "checkbox" })
        : field.options ? h("select", about, field.options.map((o) => h("option", { value: o }, String(o))))
          : h("input", { ...about, inputmode: "decimal", autocomplete: "off", size: 8 });
      input.addEventListener(field.yes || field.options ? "change" : "input", () => changed(name));
      const label = h("label", { for: at }, field.label, field.unit ? [" ", h("small", {}, `[${field.unit}]`)] : "");
      return h("div", { class: field.yes ? "tick" : "ask" }, field.yes ? [input, label] : [label, input], h("small", { id: `${at}-wrong`, class: "wrong" }));
    };
    const sets = groups.map(([title, of, { fold, when } = {}]) => {
      const rows = Object.entries(of).map(([name, field]) => row(name, field));
      const set = fold ? h("details", {}, h("summary", {}, title), h("fieldset", {}, h("legend", { class: "hidden" }, title), rows)) : h("fieldset", {}, h("legend", {}, title), rows);
      return { set, when };
    });
    const paste = calculator.paste && h("textarea", { id: `${key}-paste`, rows: 2, spellcheck: "false", "aria-describedby": `${key}-paste-wrong`, oninput: () => pasted(paste.value) });
    const reset = h("button", { type: "button", onclick: () => { heard = []; apply(start); } }, "reset");
    const show = () => {
      for (const [name, input] of Object.entries(inputs))
        if (fields[name].yes) input.checked = state[name]; else if (input !== document.activeElement || fields[name].options) input.value = state[name];
    };
    const tell = (name, text) => {
      document.getElementById(`${key}-${name}-wrong`).textContent = text;
      const input = inputs[name] || paste;
      if (text) input.closest("details")?.setAttribute("open", "");
      if (text) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid");
    };
    const changed = (name) => {
      heard = [];
      const field = fields[name], text = field.yes ? inputs[name].checked : inputs[name].value, value = parse(field, text);
      tell(name, value === undefined ? complaint(field, text) : "");
      if (value !== undefined) { state = calculator.filled({ ...state, [name]: value }, name); show(); }
      render();
    };
    const pasted = (text) => {
      tell("paste", "");
      try {
        [state, ...heard] = text.trim() ? calculator.pasted(text, state) : [state];
        show();
      } catch {
        heard = [];
        tell("paste", 'This is not what python -m utils.bounds --json prints: one line, with "bound".');
      }
      render();
    };
    const apply = (next) => {
      state = { ...state, ...Object.fromEntries(Object.keys(start).map((name) => [name, next[name]])) };
      for (const name of Object.keys(inputs)) tell(name, "");
      document.activeElement.blur();
      show();
      render();
    };
    const render = () => {
      for (const { set, when } of sets) set.hidden = when ? !when(state) : false;
      const bad = Object.keys(inputs).filter((name) => inputs[name].getAttribute("aria-invalid") && !inputs[name].closest("[hidden]"));
      const error = bad.length ? document.getElementById(`${key}-${bad[0]}-wrong`).textContent : calculator.wrong(state);
      const { status: said, body: shown, beside } = error ? { status: error, body: [] } : calculator.says(state, apply, heard);
      body.replaceChildren(...shown.filter(Boolean));
      beyond.replaceChildren(beside || "");
      status.classList.toggle("wrong", Boolean(error));
      clearTimeout(later);
      later = setTimeout(() => { status.textContent = said; }, status.textContent ? 150 : 0); // not at every key
      const query = new URLSearchParams(location.search), kept = calculator.derived(state);
      for (const name of Object.keys(inputs)) {
        query.delete(`${key}.${name}`);
        if (state[name] !== start[name] && !kept.includes(name)) query.set(`${key}.${name}`, state[name]);
      }
      const text = query.toString();
      // Of a page from a disk, some browsers allow no other address.
      try {
        history.replaceState(null, "", `${location.pathname}${text && `?${text}`}${location.hash}`);
      } catch {}
    };
    const read = () => {
      state = { ...start };
      const query = new URLSearchParams(location.search), faults = {};
      for (const [name, field] of Object.entries(fields)) {
        const text = query.get(`${key}.${name}`);
        if (text === null) continue;
        const value = field.yes ? text === "true" : parse(field, text);
        if (value === undefined) faults[name] = field.options ? `“${text.slice(0, 20)}” is none of the choices: ${field.label}.` : complaint(field, text);
        else state = calculator.filled({ ...state, [name]: value }, name);
      }
      show();
      for (const name of Object.keys(inputs)) tell(name, faults[name] || "");
      render();
    };
    const form = h("form", { class: "explore", id: `${key}-form`, "aria-label": place.closest("section").querySelector("h2").firstChild.textContent, onsubmit: (e) => e.preventDefault() },
      sets.map(({ set }) => set), paste ? h("fieldset", {}, h("legend", {}, "A profile"), h("label", { for: paste.id }, calculator.paste), paste, h("small", { id: `${key}-paste-wrong`, class: "wrong" })) : null, reset);
    place.after(h("div", { class: "explore-all" }, form, h("div", { class: "explore-said" }, status, body), beyond));
    addEventListener("popstate", read);
    read();
  };
  [fitting, binding, crowding].forEach(build);
  // where it was before the forms came
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
})();
