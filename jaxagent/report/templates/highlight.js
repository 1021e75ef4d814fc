// Syntax colours for C++/CUDA, Python and shell: text -> lines of [class, text] pieces.
// Every alternative of a pattern reads to its end or to the end of the text, so that hostile texts take linear time.

const MAX_COLOURED = 200000;
const END = "(?![\\s\\S])";

const CPP_WORDS = "alignas alignof asm auto bool break case catch char class const constexpr continue default delete do " +
  "double else enum explicit extern false float for friend goto if inline int long namespace new noexcept nullptr " +
  "operator private protected public register restrict return short signed sizeof static struct switch template this " +
  "throw true try typedef typename union unsigned using virtual void volatile while int8_t int16_t int32_t int64_t " +
  "uint8_t uint16_t uint32_t uint64_t size_t __global__ __device__ __shared__ __host__ __restrict__ __forceinline__";
const PYTHON_WORDS = "False None True and as assert async await break class continue def del elif else except finally " +
  "for from global if import in is lambda nonlocal not or pass raise return try while with yield self";
const SHELL_WORDS = "if then else elif fi for in do done while case esac function export cd echo set python3 python bash";

const NUMBER = "(?<number>\\b(?:0[xX][\\da-fA-F']+|\\d[\\d']*\\.?\\d*(?:[eE][+-]?\\d+)?)[a-zA-Z]*)";
const WORD = "(?<word>[A-Za-z_]\\w*)";

const LANGUAGES = {
  cpp: {
    words: new Set(CPP_WORDS.split(" ")),
    pattern: `(?<comment>\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|${END}))|(?<directive>#[ \\t]*[a-z]+)|` +
      `(?<string>"(?:\\\\[\\s\\S]|[^"\\\\\\n])*"?|'(?:\\\\[\\s\\S]|[^'\\\\\\n])*'?)|${NUMBER}|${WORD}`,
  },
  python: {
    words: new Set(PYTHON_WORDS.split(" ")),
    pattern: `(?<comment>#[^\\n]*)|(?<string>"""[\\s\\S]*?(?:"""|${END})|'''[\\s\\S]*?(?:'''|${END})|` +
      `"(?:\\\\[\\s\\S]|[^"\\\\\\n])*"?|'(?:\\\\[\\s\\S]|[^'\\\\\\n])*'?)|(?<directive>@[\\w.]+)|${NUMBER}|${WORD}`,
  },
  shell: {
    words: new Set(SHELL_WORDS.split(" ")),
    pattern: `(?<comment>#[^\\n]*)|(?<string>"(?:\\\\[\\s\\S]|[^"\\\\])*"?|'[^']*'?)|${WORD}`,
  },
};

function languageOf(path) {
  if (/\.(cpp|cc|cu|cuh|h|hpp|c)$/.test(path)) return "cpp";
  if (/\.py$/.test(path)) return "python";
  return /\.sh$/.test(path) ? "shell" : "";
}

function coloured(text, language) {
  const lines = [[]];
  const put = (kind, piece) => piece.split("\n").forEach((part, place) => {
    if (place) lines.push([]);
    if (part) lines[lines.length - 1].push([kind, part]);
  });
  const rules = text.length > MAX_COLOURED ? undefined : LANGUAGES[language];
  if (!rules) { put("", text); return lines; }
  let end = 0;
  for (const match of text.matchAll(new RegExp(rules.pattern, "g"))) {
    if (match.index > end) put("", text.slice(end, match.index));
    end = match.index + match[0].length;
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    put(kind === "word" ? wordKind(rules, match[0], text[end]) : kind, match[0]);
  }
  put("", text.slice(end));
  return lines;
}

function wordKind(rules, word, next) {
  if (rules.words.has(word)) return "keyword";
  return next === "(" ? "call" : "";
}

const pieces = (line) => line.map(([kind, text]) => (kind ? element("span", { class: `c-${kind}` }, text) : text));

function codeBlock(text, language) {
  const shown = text.endsWith("\n") ? text.slice(0, -1) : text;
  const lines = coloured(shown, language).map((line) => element("span", { class: "line" }, pieces(line), "\n"));
  return element("pre", { class: "code" }, lines);
}
