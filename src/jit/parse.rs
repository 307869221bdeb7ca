//! The source of an element-wise function: templates of C++, the last of which is the one that is called.

use crate::base::{Error, Result, room};
use smallvec::SmallVec;

/// What is known of a function from its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    pub name: String,
    pub parameters: usize,
}

/// A word, a number, a text or a sign, and where it begins.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Token<'a> {
    text: &'a str,
    at: usize,
    /// Of a bracket: how many tokens further the one is that closes it. 0: none does, or this opens nothing.
    length: usize,
}

const WORDS: &str = "the words of a source";

/// Signs that are one although they have signs in them which mean something here. `>>` is none: it may close two lists.
const WHOLE: [&str; 7] = ["<<=", ">>=", "<<", "<=", ">=", "->", "--"];

/// What is followed by a ( that does not begin the function's parameters.
const WITH_ARGUMENTS: [&str; 11] = [
    "alignas",
    "__align__",
    "__attribute__",
    "__attribute",
    "decltype",
    "typeof",
    "__typeof__",
    "__launch_bounds__",
    "explicit",
    "noexcept",
    "__declspec",
];

/// torch's rules: every function is a template, the last one is called. `outputs`: so many of its parameters, the last ones, are references
/// that it writes, and it returns void; 0: what it returns is its output.
pub fn parse(source: &str, outputs: usize) -> Result<Signature> {
    let (tokens, _) = read(source)?;
    let by_reference = outputs > 0;
    let form = if by_reference { "void name(T x, T y, T &out) { out = ...; }" } else { "T name(T x, T y) { return ...; }" };
    let wrong = |at: usize, what: &str| {
        Error::invalid_argument(format!(
            "The source is wrong at {}: {what} An element-wise function is written as `template <typename T> {form}`; functions that it calls \
             stand before it, as templates too.",
            place(source, at)
        ))
    };
    let mut reader = Reader { tokens: &tokens, at: 0, end: source.len() };
    let mut last = None;
    while let Some(first) = reader.next() {
        if first.text == ";" {
            continue;
        }
        if first.text != "template" {
            return Err(wrong(first.at, &format!("'{}' begins something that is no template.", first.text)));
        }
        let is_special = reader.peek().is_some_and(|token| token.length == 1);
        if !reader.group(&["<"]) {
            return Err(wrong(reader.here(), "after 'template' come its parameters, in < and >, which are not closed here."));
        }
        // All up to the parameters is the return type and the name, unless this is a struct.
        let (start, mut name) = (reader.at, None);
        while let Some(token) = reader.peek().filter(|token| !["{", ";", "="].contains(&token.text)) {
            let takes = name.is_some_and(|at: usize| WITH_ARGUMENTS.contains(&tokens[at].text));
            if token.text == "(" && !takes {
                break;
            }
            if !["(", "["].contains(&token.text) {
                name = Some(reader.at);
            }
            if ["(", "[", "<"].contains(&token.text) {
                if !reader.group(&[token.text]) {
                    return Err(wrong(token.at, &format!("the {} here is not closed.", token.text)));
                }
                continue;
            }
            reader.next();
            if token.text == "operator" {
                // Its sign, which may be ( and ).
                reader.group(&["("]);
                while reader.peek().is_some_and(|token| !["(", "{", ";"].contains(&token.text)) {
                    reader.next();
                }
            }
        }
        if reader.peek().is_none_or(|token| token.text != "(") {
            // A struct, a constant, or a function that is only declared.
            let definition = reader.peek().ok_or_else(|| wrong(reader.here(), "the template ends before it has a body."))?;
            reader.skip(&["{"]);
            if reader.next().is_none_or(|token| token.text != ";") {
                return Err(wrong(definition.at, "what begins here is not closed."));
            }
            continue;
        }
        let opening = reader.here();
        let parameters = reader.at + 1;
        if !reader.group(&["("]) {
            return Err(wrong(opening, "the parameters are not closed."));
        }
        let parameters = &tokens[parameters..reader.at - 1];
        let mut returned = &tokens[start..name.unwrap_or(start)];
        while reader.peek().is_some_and(|token| ["noexcept", "const", "__attribute__", "["].contains(&token.text)) {
            if !reader.group(&["["]) {
                reader.next();
                reader.group(&["("]);
            }
        }
        if reader.peek().is_some_and(|token| token.text == "->") {
            let from = reader.at + 1;
            reader.skip(&["(", "<"]);
            returned = &tokens[from..reader.at];
        }
        // Only declared, or `= delete`, `= default`.
        if reader.peek().is_some_and(|token| token.text == "=") {
            reader.skip(&["("]);
        }
        if reader.peek().is_some_and(|token| token.text == ";") {
            continue;
        }
        let body = reader.here();
        if !reader.group(&["{"]) {
            return Err(wrong(body, "here the function's body is expected, in { and }, and closed."));
        }
        last = Some((is_special, name.map(|at| tokens[at]), returned, opening, parameters));
    }
    let Some((is_special, name, returned, opening, parameters)) = last else {
        return Err(wrong(source.len(), "there is no template function."));
    };
    if is_special || name.is_some_and(|name| name.text == "operator") {
        return Err(wrong(opening, "this is the last function, which is called: it is no operator, and no specialization of a template."));
    }
    let (Some(name), Some(kind)) = (name.filter(|name| is_word(name.text)), returned.last()) else {
        return Err(wrong(opening, "before the parameters come the type that the function returns and its name."));
    };
    if name.text.starts_with("tcuda") {
        return Err(wrong(name.at, "names that begin with 'tcuda' are those of the code around it."));
    }
    // Among it may stand `inline`, `static`, `__device__`.
    let has = |word| {
        let mut is_outside = outside();
        returned.iter().any(|token| is_outside(token) && token.text == word)
    };
    let is_void = has("void") && !has("*");
    if by_reference && !is_void {
        return Err(wrong(kind.at, &format!("'{}' has its outputs as its last parameters, so it returns void.", name.text)));
    }
    if !by_reference && is_void {
        return Err(wrong(kind.at, &format!("'{}' returns void. What it returns is its output.", name.text)));
    }
    let count = split(parameters).count();
    if count == 0 {
        return Err(wrong(opening, &format!("'{}' has no parameters.", name.text)));
    }
    for (nth, parameter) in split(parameters).enumerate() {
        let (is_output, is_written) = (nth + outputs >= count, is_written(parameter));
        if is_output != is_written {
            let place = parameter.first().map_or(opening, |token| token.at);
            let what = if is_output {
                format!("'{}' has {outputs} outputs, its last parameters, and this one is no reference that it could write to.", name.text)
            } else {
                format!("this parameter of '{}' is none of its outputs, so it comes by value or as a const reference.", name.text)
            };
            return Err(wrong(place, &what));
        }
    }
    Ok(Signature { name: name.text.into(), parameters: count })
}

/// The names that a source gives a meaning of its own with `#define`, whichever branch of an `#if` they stand in. None of those that are the
/// compiler's or tcuda's.
pub fn macros(source: &str) -> Vec<&str> {
    read(source).map_or(Vec::new(), |(_, macros)| macros)
}

/// Words that no macro can be called, and no line can name as one.
const OPERATORS: [&str; 12] = ["defined", "and", "or", "not", "xor", "bitand", "bitor", "compl", "and_eq", "or_eq", "xor_eq", "not_eq"];

fn is_macro(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && !name.to_ascii_lowercase().starts_with("tcuda") && !OPERATORS.contains(&name)
}

/// The tokens of each parameter.
fn split<'a>(parameters: &'a [Token<'a>]) -> impl Iterator<Item = &'a [Token<'a>]> {
    let mut is_outside = outside();
    // Of nothing there would be one that is empty.
    parameters.split(move |token| is_outside(token) && token.text == ",").filter(move |_| !parameters.is_empty())
}

/// Says of one token after the other whether it is in no group.
fn outside() -> impl FnMut(&Token) -> bool {
    let mut inside = 0;
    move |token| {
        let is_outside = inside == 0;
        inside = if is_outside { token.length } else { inside - 1 };
        is_outside
    }
}

/// Whether a parameter is a reference that is not const, to what has a name: `T &y`.
fn is_written(parameter: &[Token]) -> bool {
    let mut is_outside = outside();
    let mut outside = parameter.iter().filter(|token| is_outside(token)).take_while(|token| token.text != "=");
    let reference = outside.find(|token| ["&", "const"].contains(&token.text));
    reference.is_some_and(|token| token.text == "&") && outside.next().is_none_or(|token| token.text != "&")
}

/// `line 3, column 5: `the line``.
fn place(source: &str, at: usize) -> String {
    let before = &source[..at.min(source.len())];
    let line = before.matches('\n').count();
    let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1) + 1;
    let text = source.lines().nth(line).unwrap_or_default().trim();
    format!("line {}, column {column} (`{text}`)", line + 1)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// A part of an `#if`.
struct Branch {
    /// Whether its tokens count.
    counts: bool,
    /// Whether those of no later one do.
    is_done: bool,
}

/// Of the branches of an `#if` the first one counts, unless it is known to be for nobody: brackets are closed in it or in none. What the source
/// does not define is not defined, but for the compiler's own names, which begin with _ and count as both.
fn turn(branches: &mut Vec<Branch>, words: &[&str], defined: &[&str]) -> Result<()> {
    let is_possible = match *words {
        [_, "0" | "false"] => false,
        ["ifdef" | "elifdef", name] | ["if" | "elif", "defined", name] => name.starts_with('_') || defined.contains(&name),
        ["ifndef" | "elifndef", name] => name.starts_with('_') || !defined.contains(&name),
        _ => true,
    };
    match words.first() {
        Some(&("if" | "ifdef" | "ifndef")) => {
            let counts = counts(branches);
            room::push(branches, Branch { counts: counts && is_possible, is_done: !counts || is_possible }, WORDS)?;
        }
        Some(&("elif" | "elifdef" | "elifndef" | "else")) => {
            if let Some(branch) = branches.last_mut() {
                branch.counts = !branch.is_done && is_possible;
                branch.is_done |= is_possible;
            }
        }
        Some(&"endif") => drop(branches.pop()),
        _ => {}
    }
    Ok(())
}

fn counts(branches: &[Branch]) -> bool {
    branches.last().is_none_or(|branch| branch.counts)
}

/// The tokens, without comments and without lines for the preprocessor; and the names that these define.
fn read(source: &str) -> Result<(Vec<Token<'_>>, Vec<&str>)> {
    let (mut found, mut macros, mut defined) = (Vec::new(), Vec::new(), Vec::new());
    let (mut open, mut branches) = (Vec::new(), Vec::new());
    // The first words of a line for the preprocessor, as long as it is read.
    let mut line: Option<SmallVec<[&str; 4]>> = None;
    let (mut at, mut line_is_empty, mut before) = (0, true, Token { text: "", at: 0, length: 0 });
    while at < source.len() {
        let (start, rest) = (at, &source[at..]);
        match source.as_bytes()[at] {
            b'\n' => {
                (at, line_is_empty) = (at + 1, true);
                if let Some(words) = line.take() {
                    turn(&mut branches, &words, &defined)?;
                }
                continue;
            }
            byte if byte.is_ascii_whitespace() => at += 1,
            b'\\' if joined(rest) > 0 => at += joined(rest),
            _ if rest.starts_with("//") => at += line_end(rest),
            _ if rest.starts_with("/*") => at = rest[2..].find("*/").map_or(source.len(), |length| start + length + 4),
            b'#' if line_is_empty => (at, line, line_is_empty) = (at + 1, Some(SmallVec::new()), false),
            _ => line_is_empty = false,
        }
        if at > start {
            continue;
        }
        let counts = line.is_none() && counts(&branches);
        let is_text = rest.starts_with(['"', '\'']);
        let length = if is_text {
            let is_raw = rest.starts_with('"') && before.at + before.text.len() == at && is_raw(before.text);
            let length = if is_raw { raw_text(rest) } else { plain_text(rest) };
            // What is no text, as an apostrophe, is nothing wrong where nobody compiles it.
            let length = length.or_else(|| (!counts && !is_raw).then(|| line_end(rest)));
            length
                .ok_or_else(|| Error::invalid_argument(format!("The source is wrong at {}: a text is not closed.", place(source, start))))?
        } else if rest.starts_with(|c: char| c.is_ascii_digit()) {
            number(rest)
        } else {
            let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let sign = || WHOLE.iter().find(|sign| rest.starts_with(**sign)).map(|sign| sign.len());
            if word > 0 { word } else { sign().or_else(|| rest.chars().next().map(char::len_utf8)).unwrap_or(1) }
        };
        at += length;
        let token = Token { text: if is_text { "\"" } else { &source[start..at] }, at: start, length: 0 };
        if let Some(words) = &mut line {
            if words[..] == ["define"] && is_macro(token.text) {
                room::push(&mut macros, token.text, WORDS)?;
            }
            match words[..] {
                ["define"] if self::counts(&branches) => room::push(&mut defined, token.text, WORDS)?,
                ["undef"] if self::counts(&branches) => defined.retain(|name| *name != token.text),
                _ => {}
            }
            // `defined (NAME)` is `defined NAME`.
            if words.len() < 4 && !["(", ")"].contains(&token.text) {
                words.push(token.text);
            }
        } else if counts {
            close(&mut found, &mut open, &token);
            // Behind what is no name, < compares.
            let opens = match token.text {
                "(" | "[" | "{" => true,
                "<" => is_word(before.text) && before.text != "operator",
                _ => false,
            };
            if opens {
                room::push(&mut open, found.len(), WORDS)?;
            }
            room::push(&mut found, token, WORDS)?;
        }
        before = token;
    }
    Ok((found, macros))
}

/// Finds the bracket that a token closes. Weaker ones between them close nowhere: a < that compares, a ( of a macro.
fn close(found: &mut [Token], open: &mut Vec<usize>, token: &Token) {
    let strength = |text: &str| match text {
        "<" | ">" => 1,
        "(" | ")" | "[" | "]" => 2,
        _ => 3,
    };
    let opening = match token.text {
        ")" => "(",
        "]" => "[",
        "}" => "{",
        ">" => "<",
        _ => return,
    };
    while open.last().is_some_and(|at| strength(found[*at].text) < strength(opening)) {
        open.pop();
    }
    if let Some(at) = open.pop_if(|at| found[*at].text == opening) {
        found[at].length = found.len() - at;
    }
}

/// The length of a backslash and the end of its line, which joins the next one to it; 0: it is no such.
fn joined(rest: &str) -> usize {
    let end = rest[1..].trim_start_matches([' ', '\t', '\r']);
    if end.starts_with('\n') { rest.len() - end.len() + 1 } else { 0 }
}

/// Up to the end of a line that no other is joined to.
fn line_end(rest: &str) -> usize {
    let is_joined = |at: usize| rest[..at].trim_end_matches([' ', '\t', '\r']).ends_with('\\');
    rest.match_indices('\n').map(|(at, _)| at).find(|at| !is_joined(*at)).unwrap_or(rest.len())
}

/// What makes the text behind it a raw one.
fn is_raw(word: &str) -> bool {
    ["R", "LR", "uR", "UR", "u8R"].contains(&word)
}

/// The length of a text with its quotes, on one line. None: it is not closed.
fn plain_text(rest: &str) -> Option<usize> {
    let (quote, mut inside) = (rest.as_bytes()[0], rest.bytes().enumerate().skip(1));
    while let Some((at, byte)) = inside.next() {
        match byte {
            b'\n' if !rest[..at].ends_with("\\\r") => return None,
            b'\\' => drop(inside.next()),
            _ if byte == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The same of `"name(anything)name"`.
fn raw_text(rest: &str) -> Option<usize> {
    let (name, inside) =
        rest[1..].split_once('(').filter(|(name, _)| !name.contains(|c: char| c.is_whitespace() || "\\)\"".contains(c)))?;
    let end = format!("){name}\"");
    Some(name.len() + 2 + inside.find(&end)? + end.len())
}

/// The length of a number, as 1'000.5e-3f.
fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let goes_on = |at: usize| {
        let (byte, next) = (bytes[at], bytes.get(at + 1).copied().unwrap_or(b' '));
        byte.is_ascii_alphanumeric()
            || byte == b'_'
            || byte == b'.'
            || byte == b'\'' && (next.is_ascii_alphanumeric() || next == b'_')
            || (byte == b'+' || byte == b'-') && matches!(bytes[at - 1], b'e' | b'E' | b'p' | b'P')
    };
    (1..bytes.len()).find(|at| !goes_on(*at)).unwrap_or(bytes.len())
}

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Option<Token<'a>> {
        self.at += 1;
        self.tokens.get(self.at - 1).copied()
    }

    /// The place of the next token.
    fn here(&self) -> usize {
        self.peek().map_or(self.end, |token| token.at)
    }

    /// Goes behind a group if one of these begins here; false leaves it where it was.
    fn group(&mut self, opening: &[&str]) -> bool {
        let length = self.peek().filter(|token| opening.contains(&token.text)).map_or(0, |token| token.length);
        self.at += if length > 0 { length + 1 } else { 0 };
        length > 0
    }

    /// Goes to the next { or ; that is in no group of these.
    fn skip(&mut self, groups: &[&str]) {
        while self.group(groups) || self.peek().is_some_and(|token| !["{", ";"].contains(&token.text)) && self.next().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::numbers;

    fn found(source: &str) -> (String, usize) {
        let signature = parse(source, 0).unwrap_or_else(|error| panic!("{error}"));
        (signature.name, signature.parameters)
    }

    #[test]
    fn the_last_template_is_the_function() {
        assert_eq!(found("template <typename T> T f(T x) { return x; }"), ("f".into(), 1));
        assert_eq!(found("\n template<typename T>T f_1(T x,T y , T alpha){if (x<y) {return x;} return y;}\n// }"), ("f_1".into(), 3));
        let two = "template <typename T> T helper(T x) { return x * 2; }\n/* template */ template <typename T>\nT entry(T a, T b) { return helper(a) + b; }";
        assert_eq!(found(two), ("entry".into(), 2));
        assert_eq!(
            found("template <typename T, int N = (3 > 2)> static inline std::complex<T> g(std::complex<T> x, T y) { return x; }"),
            ("g".into(), 2)
        );
        assert_eq!(
            found("#define TWO(x) \\\n  (x + x)\ntemplate <typename T> T f(T x) { const char *s = \"}\"; char c = '\\''; return TWO(x); }"),
            ("f".into(), 1)
        );
        assert_eq!(
            found("template <class T> struct Pair { T a; T b() { return a; } };\ntemplate <class T> T f(T x) { return x; };"),
            ("f".into(), 1)
        );
        assert_eq!(found("template <class T> T later(T);\ntemplate <class T> T f(T x) { return later(x); }\ntemplate <class T> T later(T x) { return x; }").0, "later");
        for before in ["", "inline ", "static inline ", "__device__ ", "__host__ __device__ __forceinline__ ", "constexpr "] {
            let source = format!("template <typename T> {before}void f(T x, T &a, T &b) {{ a = b = x; }}");
            assert_eq!(parse(&source, 2).unwrap().parameters, 3, "{source}");
            assert!(parse(&source, 0).is_err(), "{source}");
        }
    }

    const F: &str = "template <typename T> T f(T x) { return x; }";

    #[test]
    fn helpers_are_of_any_form() {
        for helper in [
            "template <typename T> struct alignas(8) P { T a; };",
            "template <typename T> struct __align__(8) P { T a; };",
            "template <typename T> T eps() { return T(1); }\ntemplate <> double eps<double>() { return 2; }",
            "template <> double K<double>::value() const noexcept { return 2; }",
            "template <typename T> P<T> operator+(P<T> a, P<T> b) { return {a.a + b.a}; }",
            "template <typename T> bool operator<(P<T> a, P<T> b) { return a.a < b.a; }",
            "template <> bool operator< <float>(P<float> a, P<float> b) { return a.a < b.a; }",
            "template <typename T> P<T> operator<<(P<T> a, int b) { return a; }\ntemplate <typename T> P<T> operator>>(P<T> a, int b) { return a; }",
            "template <typename T> P<T> &operator<<=(P<T> &a, int b) { return a; }\ntemplate <typename T> bool operator==(P<T> a, int b) { \
             return a; }",
            "template <typename T> T P<T>::operator()(T a) const { return a; }\ntemplate <typename T> T P<T>::operator[](int a) { return a; }",
            "template <typename T> P(T a) -> P<T>;",
            "template <typename T> constexpr bool less = sizeof(T) < 4;\ntemplate <typename T> constexpr T one{1};",
        ] {
            assert_eq!(found(&format!("{helper}\n{F}")), ("f".into(), 1), "{helper}");
        }
        for last in ["template <> double f<double>(double x) { return x; }", "template <typename T> T operator+(T x, P<T> y) { return x; }"]
        {
            let error = parse(&format!("{F}\n{last}"), 0).unwrap_err();
            assert!(error.message.contains("line 2") && error.message.contains("no operator, and no specialization"), "{error}");
        }
    }

    #[test]
    fn a_head_is_all_that_may_stand_there() {
        for source in [
            "template <typename T> __attribute__((always_inline)) T f(T x, T y) { return x; }",
            "template <typename T> [[nodiscard]] T f(T x, T y) { return x; }",
            "template <typename T> decltype(T()) f(T x, T y) { return x; }",
            "template <typename T> T f(T x, T y) noexcept { return x; }",
            "template <typename T> T f(T x, T y) noexcept(sizeof(T) > 2) { return x; }",
            "template <typename T> auto f(T x, T y) -> T { return x; }",
            "template <typename T> auto f(T x, T y) noexcept -> std::enable_if_t<(sizeof(T) > 1), decltype(T{})> { return x; }",
            "template <typename T, int N = 1 << 2> T f(T x, T y) { return x + N; }",
            "template <typename T, bool N = sizeof(T) >= 4, bool M = sizeof(T) <= 4, bool L = 3 < 4> T f(T x, T y) { return x; }",
            "template <typename T, typename = std::enable_if_t<std::is_same<T, int>::value>> T f(T x, T y) { return x; }",
            "template <typename T, T (*F)(T) = [](T a) -> T { return a; }> T f(T x, T y) { return x; }",
            "template <template <typename> class P, typename T> T f(T x, T y) { return x; }",
            "template <typename T> T f(T x, T y = T(2) < T(1) ? T(2) > T(1) : T(8) >> 1) { return x; }",
            "template <typename T> T f(P<T, 2> x, T y = g<(1 > 2), T>(T{1, 2}, T(3))) { return x; }",
        ] {
            assert_eq!(found(source), ("f".into(), 2), "{source}");
        }
        for returned in ["void inline f(T x, T &y)", "auto f(T x, T &y) -> void", "auto f(T x, T &y) noexcept -> void"] {
            let source = format!("template <typename T> {returned} {{ y = x; }}");
            assert_eq!(parse(&source, 1).unwrap().parameters, 2, "{source}");
            assert!(parse(&source.replace('&', ""), 0).unwrap_err().message.contains("returns void"), "{source}");
        }
        assert!(
            parse("template <typename T> auto f(T x, T &y) -> T { return y = x; }", 1).unwrap_err().message.contains("so it returns void")
        );
        assert!(parse("template <typename T> std::function<void(T)> f(T x, T &y) { y = x; }", 1).is_err());
    }

    /// Brackets count in the branches that may be compiled together.
    #[test]
    fn lines_for_the_preprocessor() {
        for source in [
            "template <typename T> T f(T x) {\n#ifdef NO\n if (x > 0) {\n#else\n if (x < 0) {\n#endif\n return x; } return -x; }",
            "template <typename T> T f(T x) {\n#if A\n {\n#if B\n {\n# else\n { {\n# endif\n }\n#elif C\n { {\n#else\n { { {\n#endif\n } return x; }",
            "template <typename T> T f(T x) {\n#if 0\n { don't \"\n#if 1\n {\n#else\n {\n#endif\n#elif 0\n {\n#elif 1\n (x);\n#else\n \
             {\n#endif\n return x; }",
            "#if 0 // for nobody\nint x;\n#else /* for all */\ntemplate <typename T> T f(T x) { return x; }\n#endif\n",
            "#if false\n#endif_\n/*\n#endif\n*/ int x;\n#endif\ntemplate <typename T> T f(T x) { return x; }",
            "#define A 1 /* one\n two { */ {\ntemplate <typename T> T f(T x) { return x + A; }",
            "#define A \"/*\" // one \\\n { /*\n#error don't \\\r\n {\n template <typename T> T f(T x) { return x; }",
            "// note \\\ntemplate <typename T> T g(T x) { return 0; }\ntemplate <typename T> T \\\n f(T x) { return x; }",
            "template <typename T>\r\nT f(T x)\r\n{\r\n#if 1 \\\r\n && 1\r\n const char *s = \"a\\\r\n}\"; return x;\r\n#endif\r\n}\r\n",
            "#endif\n#else\n#elif\n#\ntemplate <typename T> T f(T x) { return x; }\n#if 0\ntemplate <typename T> T g(T x, T y) { return x; }",
        ] {
            assert_eq!(found(source), ("f".into(), 1), "{source}");
        }
    }

    #[test]
    fn what_is_defined_is_known() {
        let source = "#define a 1\n  # /* */ define b(x) x\n#if 0\n#define c \\\n 2\n#else\n#\tdefine \\\n d\n#endif\n// #define no 1\n\
                      \"\\\n#define no\" #define no\n/*\n#define no\n*/ #define e\n#define __global__\n#define TCUDA_KERNEL\n#define and\n#define\n\
                      #undef no\n#ifdef no\n#define args";
        assert_eq!(macros(source), ["a", "b", "c", "d", "e", "args"]);
    }

    /// Each of these took time by the square of its length.
    #[test]
    fn long_sources_take_no_longer_than_they_are() {
        let many = |text: &str| text.repeat((1 << 20) / text.len());
        for (begin, part) in [
            ("template <class T> struct S ", "{ "),
            ("template <class T> T x = ", "{ "),
            ("template <class T> T f(T x, T y = a", "< b"),
            ("template <class T> T ", "x<"),
            ("#if 0\n", "\\'"),
            ("#", "\\\""),
            ("", "\\\n"),
            ("template <class T> auto f() -> ", "x<("),
        ] {
            assert!(parse(&(begin.to_owned() + &many(part)), 0).is_err(), "{begin}{part}");
        }
    }

    #[test]
    fn numbers_and_texts_are_whole() {
        for inside in [
            "int n = 1'000; n = 0x1'F'F; n = 0b1'0;",
            "double d = 1'0.5e-3 + .5'0 + 1e+5 + 0x1.8p-3;",
            "char c = 'x', d = u8'}', e = '\\''; int n = 1'0 + 'a';",
            "const char *s = R\"(} \" \\)\";",
            "const char *s = R\"x(})\" )y\" \n # ( )x\", *t = u8R\"(\")\";",
            "const char *s = \"R\" \"(}\";",
        ] {
            let source = format!("template <typename T> T f(T x) {{ {inside} return x; }}");
            assert_eq!(found(&source), ("f".into(), 1), "{source}");
        }
        for open in ["R\"x()\"", "R\"(", "R\"", "\"\\\"", "'", "R\"a b(x)a b\""] {
            let source = format!("template <typename T> T f(T x) {{ auto s = {open}; return x; }}");
            let error = parse(&source, 0).unwrap_err();
            assert!(error.message.contains("a text is not closed"), "{source}: {error}");
        }
    }

    /// Of an `#ifdef` that counts which the compiler takes.
    #[test]
    fn what_a_source_does_not_define_is_not_defined() {
        let (two, one) = ("template <class T> T f(T x, T y) { return x; }", "template <class T> T f(T x) { return x; }");
        for (test, parameters) in [
            ("#ifdef A", 1),
            ("#ifndef A", 2),
            ("#if defined(A)", 1),
            ("#if defined A", 1),
            ("#define A\n#ifdef A", 2),
            ("# define A 1\n#if defined(A)", 2),
            ("#define A\n#undef A\n#ifdef A", 1),
            ("#if 0\n#define A\n#endif\n#ifdef A", 1),
            ("#ifdef __CUDACC__", 2),
            ("#ifndef __CUDACC__", 2),
            ("#if defined(A) || 1", 2),
            ("#if 0", 1),
        ] {
            assert_eq!(found(&format!("{test}\n{two}\n#else\n{one}\n#endif\n")).1, parameters, "{test}");
        }
        let deleted = "template <class T> bool operator==(P<T>, P<T>) = delete;\ntemplate <class T> T g(T) = delete;\n";
        assert_eq!(found(&format!("{deleted}{one}")), ("f".into(), 1));
    }

    #[test]
    fn what_is_wrong_is_shown() {
        let refused = |source: &str, outputs, words: &[&str]| {
            let error = parse(source, outputs).unwrap_err();
            assert!(words.iter().all(|word| error.message.contains(word)), "{error}");
        };
        refused("", 0, &["line 1", "no template function"]);
        refused("// nothing\n", 0, &["no template function"]);
        refused("float f(float x) { return x; }", 0, &["line 1, column 1", "'float' begins", "`float f(float x) { return x; }`"]);
        refused("template <typename T> T f(T x) { return x; }\n\n  int x;", 0, &["line 3, column 3", "'int' begins"]);
        refused("template <typename T T f(T x) { return x; }", 0, &["line 1", "in < and >"]);
        refused("template <typename T> T f(T x { return x; }", 0, &["parameters are not closed"]);
        refused("template <typename T> T f(T x)\n{ if (x) { return x; }", 0, &["line 2, column 1", "body"]);
        refused("template <typename T> T f(T x) return x;", 0, &["body"]);
        refused("template <typename T> f(T x) { return x; }", 0, &["the type that the function returns"]);
        refused("template <typename T> T f() { return T(); }", 0, &["'f' has no parameters"]);
        refused("template <typename T> void f(T x) { }", 0, &["returns void"]);
        refused("template <typename T> T f(T x, T &y) { return y = x; }", 1, &["so it returns void", "void name(T x, T y, T &out)"]);
        refused("template <typename T> T f(T x) { return \"; }", 0, &["line 1, column 41", "not closed"]);
        refused("template", 0, &["in < and >"]);
        refused("template <typename T> T tcuda_apply(T x) { return x; }", 0, &["line 1, column 25", "begin with 'tcuda'"]);
        refused("template <typename T> T", 0, &["ends before"]);
        refused("template <typename T> struct S {", 0, &["not closed"]);
    }

    /// The last parameters, as many as there are outputs, and no other.
    #[test]
    fn outputs_are_the_references_at_the_end() {
        let both = "template <typename T> void both(T x, T y, T &s, T &d) { s = x + y; d = x - y; }";
        assert_eq!(parse(both, 2).unwrap().parameters, 4);
        let refused = |source: &str, outputs, words: &[&str]| {
            let error = parse(source, outputs).unwrap_err();
            assert!(words.iter().all(|word| error.message.contains(word)), "{error}");
        };
        refused(both, 3, &["line 1, column 38", "'both' has 3 outputs", "no reference"]);
        refused(both, 1, &["line 1, column 43", "this parameter of 'both' is none of its outputs"]);
        let taken = |parameter: &str, is_output: bool| {
            let of = |returned, outputs| {
                parse(&format!("template <typename T> {returned} f(T x, {parameter}) {{ return; }}"), outputs).map(|found| found.parameters)
            };
            assert_eq!((of("void", 1).ok(), of("T", 0).ok()), if is_output { (Some(2), None) } else { (None, Some(2)) }, "{parameter}");
        };
        for output in ["T &y", "T& y", "T&", "std::complex<T> & y", "Pair<const T> &y", "T &y = first<T, const T &>()", "volatile T &y"] {
            taken(output, true);
        }
        for input in ["T y", "const T &y", "T const &y", "const std::complex<T> &", "T &&y", "T y = T(a & b)", "T y = a & b", "T (*y)(T &)"]
        {
            taken(input, false);
        }
        refused("template <typename T> T f(T x,\n    T &y) { return y = x; }", 0, &["line 2, column 5", "none of its outputs"]);
        refused("template <typename T> void f(T x, T &y,) { y = x; }", 1, &["line 1, column 35"]);
    }

    /// No text, however broken, takes it down.
    #[test]
    fn every_part_of_a_source_has_an_answer() {
        let whole = "template <typename T = A<B>> T hälper(T x) { return x; } /* \" */ template <class T> T f(T a, T (*b)(T, T)) { return '\\''; } // é";
        for from in (0..whole.len()).filter(|at| whole.is_char_boundary(*at)) {
            for to in (from..=whole.len()).filter(|at| whole.is_char_boundary(*at)) {
                let _ = parse(&whole[from..to], 0);
            }
        }
        assert_eq!(found(whole), ("f".into(), 2));
    }

    /// Whatever stands there: an answer, and no end without one.
    #[test]
    fn any_sequence_of_tokens_is_answered() {
        let parts = [
            "template",
            "<",
            ">",
            "typename T",
            "(",
            ")",
            "{",
            "}",
            ";",
            "=",
            ",",
            "T",
            "f",
            "operator",
            "struct",
            "void",
            "<<",
            ">>",
            "<=",
            ">=",
            "->",
            "--",
            "[",
            "]",
            "&",
            "alignas",
            "noexcept",
            "template <>",
            "\n#if 0\n",
            "\n#ifdef x\n",
            "\n#elif y\n",
            "\n#else\n",
            "\n#endif\n",
            "\\\r\n",
            "\u{feff}",
            "\n",
            "#define x \\",
            "'a'",
            "\"",
            "R\"a(",
            ")a\"",
            "1.5e-3f",
            "ä",
            "\\",
            "/*",
            "*/",
            "//",
            " ",
        ];
        let mut next = numbers::random(1);
        let mut good = 0;
        for round in 0..100_000 {
            let (begin, end) = [("", ""), ("template <typename T> T f", ""), ("template <typename T> T f(T x) {", "}")][round % 3];
            let source = (0..next(12)).fold(String::from(begin), |source, _| source + parts[next(parts.len())]) + end;
            good += usize::from(parse(&source, usize::from(round % 7 == 0)).is_ok());
        }
        assert!(good > 0);
    }

    #[test]
    fn a_bracket_that_is_not_closed_is_an_error() {
        for source in [
            "template <typename T> std::complex<T f",
            "template <typename T> std::complex<T f(T x) { return x; }",
            "template <typename T> bool operator<(T x, T y) { return x < y; }",
            "template <typename T> T <",
        ] {
            let error = parse(source, 0).unwrap_err();
            assert!(error.message.contains("The source is wrong at line 1, column"), "{error}");
        }
    }
}
