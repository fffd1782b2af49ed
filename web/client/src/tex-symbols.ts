/** Names of symbols, functions, spaces and alphabets in TeX. */

const PAIRS = `
alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν
xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω
Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω
infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ emptyset ∅ varnothing ∅ forall ∀ exists ∃ nexists ∄ imath ı
jmath ȷ angle ∠ degree ° prime ′ top ⊤ bot ⊥ triangle △ square □ Box □ diamond ⋄ star ⋆ checkmark ✓ dagger † ddagger ‡
pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ cap ∩ cup ∪ sqcap ⊓
sqcup ⊔ vee ∨ lor ∨ wedge ∧ land ∧ setminus ∖ smallsetminus ∖ neg ¬ lnot ¬ wr ≀ amalg ⨿
leq ≤ le ≤ leqslant ⩽ geq ≥ ge ≥ geqslant ⩾ neq ≠ ne ≠ equiv ≡ approx ≈ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ prec ≺
succ ≻ preceq ⪯ succeq ⪰ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋ in ∈ notin ∉ ni ∋ perp ⊥
parallel ∥ mid ∣ nmid ∤ vdash ⊢ dashv ⊣ models ⊨ asymp ≍ doteq ≐ triangleq ≜ coloneqq ≔ lesssim ≲ gtrsim ≳ bowtie ⋈
to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ impliedby ⟸
iff ⟺ mapsto ↦ longmapsto ⟼ longrightarrow ⟶ longleftarrow ⟵ Longrightarrow ⟹ Longleftarrow ⟸ longleftrightarrow ⟷
Longleftrightarrow ⟺ uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖
hookrightarrow ↪ hookleftarrow ↩ rightharpoonup ⇀ rightleftharpoons ⇌ rightsquigarrow ⇝ leadsto ⇝
sum ∑ prod ∏ coprod ∐ int ∫ iint ∬ iiint ∭ oint ∮ bigcap ⋂ bigcup ⋃ bigvee ⋁ bigwedge ⋀ bigoplus ⨁ bigotimes ⨂
bigodot ⨀ bigsqcup ⨆
ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ dotsc … dotsb ⋯ colon : therefore ∴ because ∵ % % $ $ & & # # _ _
lbrack [ rbrack ] lt < gt > pounds £ euro € S § P ¶ copyright © surd √ flat ♭ sharp ♯ natural ♮ clubsuit ♣ heartsuit ♥
spadesuit ♠ diamondsuit ♦ complement ∁ eth ð mho ℧ Finv Ⅎ beth ℶ gimel ℷ daleth ℸ blacksquare ■ lozenge ◊ qed ∎
`;

const words = PAIRS.trim().split(/\s+/);

/** Symbols by name. */
export const SYMBOLS: Readonly<Record<string, string>> = Object.fromEntries(
  words.flatMap((name, index) => (index % 2 === 0 ? [[name, words[index + 1] ?? ""]] : [])),
);

/** Operators with scripts above and below. */
export const LIMIT_OPERATORS: ReadonlySet<string> = new Set("∑∏∐⋂⋃⋁⋀⨁⨂⨀⨆");

export const FUNCTIONS: ReadonlySet<string> = new Set(
  "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp deg dim ker hom arg".split(" "),
);

/** Functions with scripts below, and their texts. */
export const LIMIT_FUNCTIONS: Readonly<Record<string, string>> = {
  lim: "lim", max: "max", min: "min", sup: "sup", inf: "inf", det: "det", gcd: "gcd", Pr: "Pr", limsup: "lim sup",
  liminf: "lim inf", argmax: "arg max", argmin: "arg min",
};

export const SPACES: Readonly<Record<string, string>> = {
  ",": "0.1667em", thinspace: "0.1667em", ":": "0.2222em", ">": "0.2222em", medspace: "0.2222em", ";": "0.2778em",
  thickspace: "0.2778em", "!": "-0.1667em", " ": "0.3333em", enspace: "0.5em", quad: "1em", qquad: "2em",
};

/** Return a converter to letters and digits of Unicode's mathematical alphabets. `exceptions` exist elsewhere. */
function alphabet(upper: number, lower: number, digits = 0, exceptions: Readonly<Record<string, string>> = {}) {
  return (char: string): string => {
    const point = char.codePointAt(0) ?? 0;
    if (Object.hasOwn(exceptions, char)) return exceptions[char] ?? char;
    if (char >= "A" && char <= "Z") return String.fromCodePoint(upper + point - 65);
    if (char >= "a" && char <= "z") return lower ? String.fromCodePoint(lower + point - 97) : char;
    if (char >= "0" && char <= "9") return digits ? String.fromCodePoint(digits + point - 48) : char;
    return char;
  };
}

const script = alphabet(0x1d49c, 0x1d4b6, 0, {
  B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ",
});
const bold = alphabet(0x1d400, 0x1d41a, 0x1d7ce);
const doubleStruck = alphabet(0x1d538, 0x1d552, 0x1d7d8, {
  C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ",
});
const fraktur = alphabet(0x1d504, 0x1d51e, 0, { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" });
const same = (char: string): string => char;

/** Converters of characters, by the command that selects the alphabet. */
export const ALPHABETS: Readonly<Record<string, (char: string) => string>> = {
  mathbf: bold, boldsymbol: bold, bm: bold, mathbb: doubleStruck, Bbb: doubleStruck, mathcal: script, mathscr: script,
  mathfrak: fraktur, frak: fraktur, mathsf: alphabet(0x1d5a0, 0x1d5ba, 0x1d7e2),
  mathtt: alphabet(0x1d670, 0x1d68a, 0x1d7f6), mathrm: same, mathit: same, mathnormal: same, mathop: same, mathbin: same,
  mathrel: same, mathord: same, mathopen: same, mathclose: same,
};
