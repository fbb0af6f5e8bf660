"""Codes of languages: one for each language and script, whatever the region of a catalog."""

from __future__ import annotations

import re

_CODE = re.compile(r"([a-z]{2,3})(?:[-_@]+(.+))?", re.IGNORECASE)
_SAME = {
    "no": "nb",
    "iw": "he",
    "in": "id",
    "tl": "fil",
    "kmr": "ku",
    "prs": "fa",
    "pes": "fa",
    "ji": "yi",
}
_NONE = {"en", "xx", "zz"}
_PSEUDO = {"ach"}  # in Python packages more often a test than a language
_SCRIPTS = {
    "latin": "Latn",
    "latn": "Latn",
    "iqtelif": "Latn",
    "cyrillic": "Cyrl",
    "cyrl": "Cyrl",
    "arab": "Arab",
}
_TRADITIONAL = {"hant", "tw", "hk", "mo"}
_USUAL = {
    "sr": "Cyrl",
    "uz": "Latn",
    "be": "Cyrl",
    "az": "Latn",
    "bs": "Latn",
    "tt": "Cyrl",
    "kk": "Cyrl",
    "ku": "Latn",
    "ug": "Arab",
}
_REGION_WRITES = {("ku", "iq"): "ckb", ("pa", "pk"): "pa_Arab"}


def standard_code(name: str) -> str | None:
    """Find the code that corpora use for a language, however a folder or a person writes it.

    >>> [standard_code(name) for name in ("deu", "de", "por", "zh_TW", "eng")]
    ['de', 'de', 'pt', 'zh_Hant', None]
    """
    import langcodes  # here, since training needs no corpus

    try:
        tag = langcodes.standardize_tag(name, macro=True)
    except langcodes.tag_parser.LanguageTagError:
        return None
    return language_code(tag, any=True)


def language_code(locale: str, *, any: bool = False) -> str | None:
    """Find the language of a catalog's locale; None for English and for what is not a language.

    Regions are merged, scripts are not: Chinese is zh (simplified) or zh_Hant. Languages that
    programmers test with are none, unless `any` is asked for.

    >>> locales = ("pt_BR", "zh_TW", "zh-hans", "sr@latin", "sr_Cyrl", "en_GB")
    >>> [language_code(locale) for locale in locales]
    ['pt', 'zh_Hant', 'zh', 'sr_Latn', 'sr', None]
    """
    if locale == "zhtw":
        return "zh_Hant"
    match = _CODE.fullmatch(locale.partition(".")[0])
    if not match:
        return None
    language = match[1].lower()
    language = _SAME.get(language, language)
    if language in _NONE or (language in _PSEUDO and not any):
        return None
    parts = re.split(r"[-_@.]", (match[2] or "").lower())
    if language == "zh":
        return "zh_Hant" if _TRADITIONAL.intersection(parts) else "zh"
    if (language, parts[0]) in _REGION_WRITES:
        return _REGION_WRITES[language, parts[0]]
    scripts = [_SCRIPTS[part] for part in parts if part in _SCRIPTS]
    return (
        f"{language}_{scripts[0]}" if scripts and scripts[0] != _USUAL.get(language) else language
    )
