// Small things that everything uses. Text reaches the page only through text nodes.

const byId = (id) => document.getElementById(id);

function element(tag, options, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === "on") for (const [event, action] of Object.entries(value)) node.addEventListener(event, action);
    else if (name === "class") node.className = value;
    else node[name] = value;
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// A group that makes its content when it is first opened: most are never looked at.
function foldout(title, makeContent, { open = false, className = "" } = {}) {
  const node = element("details", { class: className }, element("summary", {}, title));
  let made = false;
  const make = () => { if (!made) { made = true; append(node, [makeContent()]); } };
  if (open) { make(); node.open = true; }
  node.addEventListener("toggle", () => { if (node.open) make(); });
  return node;
}

async function unpackText(id) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser cannot unpack the data (DecompressionStream is missing); use one from 2023 or later");
  }
  const packed = byId(id).textContent;
  const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const unpackJson = async (id) => JSON.parse(await unpackText(id));

function showTrouble(error) {
  const line = byId("trouble");
  line.textContent = `This part of the report could not be shown: ${error.message}`;
  line.hidden = false;
  console.error(error);
}

const number = (value, digits = 3) =>
  value === null || value === undefined ? "\u2013" : String(Number(Number(value).toPrecision(digits)));

const times = (value) => (value === null || value === undefined ? "\u2013" : `${number(value)}\u00d7`);

const words = (name) => String(name).replaceAll("_", " ");
