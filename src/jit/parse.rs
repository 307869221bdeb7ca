//! The source of an element-wise function: templates of C++, the last of which is the one that is called.

use crate::base::{Error, Result, room};

/// What is known of a function from its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    pub name: String,
    pub parameters: usize,
}

/// A word, a number, a text or a single sign, and where it begins.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Token<'a> {
    text: &'a str,
    at: usize,
}

const WORDS: &str = "the words of a source";

/// torch's rules: every function is a template, the last one is called. `outputs`: so many of its parameters, the last ones, are references
/// that it writes, and it returns void; 0: what it returns is its output.
pub fn parse(source: &str, outputs: usize) -> Result<Signature> {
    let tokens = tokens(source)?;
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
        if !reader.group("<", ">") {
            return Err(wrong(reader.here(), "after 'template' come its parameters, in < and >, which are not closed here."));
        }
        // All up to the parameters is the return type and the name, unless this is a struct.
        let mut head = Vec::new();
        while let Some(token) = reader.peek().filter(|token| !["(", "{", ";", "="].contains(&token.text)) {
            let is_operator = head.last().is_some_and(|before: &Token| before.text == "operator");
            room::push(&mut head, token, WORDS)?;
            if token.text != "<" || is_operator {
                reader.next();
            } else if !reader.group("<", ">") {
                return Err(wrong(token.at, "the < here is not closed."));
            }
        }
        if reader.peek().is_none_or(|token| token.text != "(") {
            // A struct, a constant, or a function that is only declared.
            let definition = reader.peek().ok_or_else(|| wrong(reader.here(), "the template ends before it has a body."))?;
            while reader.peek().is_some_and(|token| token.text != ";") {
                if !reader.group("{", "}") {
                    reader.next();
                }
            }
            if reader.next().is_none() {
                return Err(wrong(definition.at, "what begins here is not closed."));
            }
            continue;
        }
        let opening = reader.here();
        let Some((name, returned)) = head.split_last().filter(|(name, returned)| is_word(name.text) && !returned.is_empty()) else {
            return Err(wrong(opening, "before the parameters come the type that the function returns and its name."));
        };
        let Some(parameters) = reader.parameters() else {
            return Err(wrong(opening, "the parameters are not closed."));
        };
        if reader.peek().is_some_and(|token| token.text == ";") {
            continue;
        }
        let body = reader.here();
        if !reader.group("{", "}") {
            return Err(wrong(body, "here the function's body is expected, in { and }, and closed."));
        }
        last = Some((*name, returned[returned.len() - 1], opening, parameters));
    }
    let Some((name, returned, opening, parameters)) = last else {
        return Err(wrong(source.len(), "there is no template function."));
    };
    if name.text.starts_with("tcuda") {
        return Err(wrong(name.at, "names that begin with 'tcuda' are those of the code around it."));
    }
    // Before it may stand `inline`, `static`, `__device__`.
    let is_void = returned.text == "void";
    if by_reference && !is_void {
        return Err(wrong(returned.at, &format!("'{}' has its outputs as its last parameters, so it returns void.", name.text)));
    }
    if !by_reference && is_void {
        return Err(wrong(returned.at, &format!("'{}' returns void. What it returns is its output.", name.text)));
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

/// The tokens of each parameter.
fn split<'a>(parameters: &'a [Token<'a>]) -> impl Iterator<Item = &'a [Token<'a>]> {
    let mut depth = 0;
    let ends = move |token: &Token| {
        depth += nesting(token);
        depth == 0 && token.text == ","
    };
    // Of nothing there would be one that is empty.
    parameters.split(ends).filter(move |_| !parameters.is_empty())
}

/// What a token adds to the depth of brackets.
fn nesting(token: &Token) -> i32 {
    match token.text {
        "(" | "{" | "[" | "<" => 1,
        ")" | "}" | "]" | ">" => -1,
        _ => 0,
    }
}

/// Whether a parameter is a reference that is not const, to what has a name: `T &y`.
fn is_written(parameter: &[Token]) -> bool {
    let mut depth = 0;
    let outside = parameter.iter().filter(|token| {
        depth += nesting(token);
        depth == 0
    });
    let mut outside = outside.take_while(|token| token.text != "=");
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

/// Without comments and without lines for the preprocessor.
fn tokens(source: &str) -> Result<Vec<Token<'_>>> {
    let bytes = source.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line_is_empty) = (0, true);
    while at < bytes.len() {
        let start = at;
        let rest = &source[at..];
        let end_of = |text: &str| rest.find(text).map_or(source.len(), |length| start + length);
        match bytes[at] {
            b'\n' => (at, line_is_empty) = (at + 1, true),
            byte if byte.is_ascii_whitespace() => at += 1,
            _ if rest.starts_with("//") => at = end_of("\n"),
            _ if rest.starts_with("/*") => at = rest[2..].find("*/").map_or(source.len(), |length| start + length + 4),
            b'#' if line_is_empty => {
                // A backslash at its end takes the next line too.
                loop {
                    let line = source[at..].find('\n').map_or(source.len(), |length| at + length);
                    let goes_on = source[at..line].trim_end().ends_with('\\');
                    at = (line + 1).min(source.len());
                    if !goes_on || at == source.len() {
                        break;
                    }
                }
            }
            quote @ (b'"' | b'\'') => {
                line_is_empty = false;
                let is_raw =
                    quote == b'"' && found.last().is_some_and(|before: &Token| before.at + before.text.len() == at && is_raw(before.text));
                let length = if is_raw { raw_text(rest) } else { plain_text(rest) };
                at += length.ok_or_else(|| {
                    Error::invalid_argument(format!("The source is wrong at {}: a text is not closed.", place(source, start)))
                })?;
                room::push(&mut found, Token { text: "\"", at: start }, WORDS)?;
            }
            digit if digit.is_ascii_digit() => {
                line_is_empty = false;
                at += number(rest);
                room::push(&mut found, Token { text: &source[start..at], at: start }, WORDS)?;
            }
            _ => {
                line_is_empty = false;
                let word = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                at += if word > 0 { word } else { rest.chars().next().map_or(1, char::len_utf8) };
                room::push(&mut found, Token { text: &source[start..at], at: start }, WORDS)?;
            }
        }
    }
    Ok(found)
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
            b'\n' => return None,
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

    /// Goes behind a group if one begins here; false leaves it where it was.
    fn group(&mut self, open: &str, close: &str) -> bool {
        let start = self.at;
        let mut depth = 0;
        while let Some(token) = self.next() {
            if token.text == open {
                depth += 1;
            } else if token.text == close {
                depth -= 1;
            } else if open == "<" && self.at > start && ["(", "{"].contains(&token.text) {
                // A < or > inside is a comparison.
                self.at -= 1;
                let (open, close) = if token.text == "(" { ("(", ")") } else { ("{", "}") };
                if !self.group(open, close) {
                    break;
                }
            }
            if depth == 0 {
                if self.at == start + 1 {
                    break;
                }
                return true;
            }
        }
        self.at = start;
        false
    }

    /// Goes behind the parameters, which begin here. None: they are not closed.
    fn parameters(&mut self) -> Option<&'a [Token<'a>]> {
        let start = self.at;
        self.group("(", ")").then(|| &self.tokens[start + 1..self.at - 1])
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
