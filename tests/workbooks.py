"""Write small Excel and OpenDocument files without a package that writes them."""

from __future__ import annotations

import base64
import io
import zipfile
import zlib
from datetime import date
from xml.sax.saxutils import escape

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
STYLES = f"""<styleSheet xmlns="{MAIN}"><fonts count="1"><font/></fonts><fills count="1"><fill/></fills>
<borders count="1"><border/></borders><cellStyleXfs count="1"><xf/></cellStyleXfs>
<cellXfs count="2"><xf/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>"""
# text,label / a b,1 / c d,0 as Excel 97 stores it
XLS = (
    "c-rk)O=uHA6#izDZGLFeO-+SXC`-kvwHNW?rCk-YCrj0XQiQr`_8<+ZgdEg^R%?!e;7RdP=*3Ibi$CZ=@!~<K=s^$)Nj-WJEcDQ3`{reqrkX<oHB^~znQva"
    "+yqS5KdGnIlPYcP??6dANe!~z#sQ59o)aV42Sn$CDwfnvlgE~sZ*Z8Lpi_%86n0VdxF(UU+?spjmo`&BM14~pc;tEEla-Q8poM0bZA$=Gm7I;LO1iIL(4(18"
    "wUCd9|@(uGb*4$+tB-@f0!-6x?e^f>B1*4bS5|HD*;6C42a~PfYAfx!^JyEqaaXf$7&F;*Go^UJXK>IfA<-EL`Eg?l4IEQ8527U!6^{uV-&D9H#er2;hQb&K"
    "^2m{mbFL8huDY?E6RX6zDD)xdJgHrIW7EB=ProAkgxOSR&!p_8HO6DVMZ92kj9NMkK8ML#U<N&uQNv}Ts`T2Bu)EQ^ZG^g!qa^ENYfsb3V2X#(x3%kU&{mh4"
    "$Z}X^oSng&{QCL#lH`=L$Q!{LHhg<t-o+FGe&i)$t0LjH4XI}OczdHv>o*yn>PtAXIX3<OQk)i(bnZbY<5Dy<nymEqCs6?>H-1SFNh#Hpi-B-V0?N~#c#Uyj"
    "}lUyC4>_r`W!S-^*8%CV{N%AU7d!vrM!S*3#zp?s5MhBitfl|~4;?U60(9qD((9qCm5`_9|A5wP>Q(Yh;>b=eym5P2%^55btrsyfq#q=a{ROfN6q4?PiQv_p"
    ")E%piC7fPI`+4Go0n*Eq;IDY8@C~CjYmOEP8cZ3?9ztV`Ge|i3Oe^kOg"
)

Cell = str | int | float | bool | date | None


def xls() -> bytes:
    return zlib.decompress(base64.b85decode(XLS))


def xlsx(*sheets: list[list[Cell]]) -> bytes:
    """A workbook with sheets called Sheet1, Sheet2. A text that starts with = is a formula whose last value is 1."""
    names = [f"Sheet{place}" for place in range(1, len(sheets) + 1)]
    kinds = "".join(
        f'<Override PartName="/xl/worksheets/{name}.xml" '
        'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>'
        for name in names
    )
    entries = "".join(f'<sheet name="{name}" sheetId="{place}" r:id="r{place}"/>' for place, name in enumerate(names, 1))
    links = "".join(
        f'<Relationship Id="r{place}" Type="{OFFICE}/worksheet" Target="worksheets/{name}.xml"/>'
        for place, name in enumerate(names, 1)
    )
    files = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
        f'ContentType="application/xml"/>{kinds}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="w" Type="{OFFICE}/officeDocument" '
        'Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>{entries}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{links}<Relationship Id="s" '
        f'Type="{OFFICE}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": STYLES,
    }
    for name, rows in zip(names, sheets, strict=True):
        lines = "".join(
            f'<row r="{row}">{"".join(cell_xml(row, place, cell) for place, cell in enumerate(cells))}</row>'
            for row, cells in enumerate(rows, 1)
        )
        files[f"xl/worksheets/{name}.xml"] = f'<worksheet xmlns="{MAIN}"><sheetData>{lines}</sheetData></worksheet>'
    return zipped(files)


def cell_xml(row: int, place: int, cell: Cell) -> str:
    where = f"{chr(65 + place)}{row}"
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return f'<c r="{where}" t="b"><v>{int(cell)}</v></c>'
    if isinstance(cell, date):
        return f'<c r="{where}" s="1"><v>{(cell - date(1899, 12, 30)).days}</v></c>'
    if isinstance(cell, int | float):
        return f'<c r="{where}"><v>{cell}</v></c>'
    if cell.startswith("="):
        return f'<c r="{where}"><f>{escape(cell[1:])}</f><v>1</v></c>'
    return f'<c r="{where}" t="inlineStr"><is><t xml:space="preserve">{escape(cell)}</t></is></c>'


def ods(rows: list[list[str]]) -> bytes:
    namespace = "urn:oasis:names:tc:opendocument:xmlns"
    start, end = '<table:table-cell office:value-type="string"><text:p>', "</text:p></table:table-cell>"
    texts = ("".join(f"{start}{escape(cell)}{end}" for cell in cells) for cells in rows)
    lines = "".join(f"<table:table-row>{text}</table:table-row>" for text in texts)
    content = (
        f'<office:document-content xmlns:office="{namespace}:office:1.0" xmlns:table="{namespace}:table:1.0" '
        f'xmlns:text="{namespace}:text:1.0"><office:body><office:spreadsheet><table:table table:name="Sheet1">{lines}'
        "</table:table></office:spreadsheet></office:body></office:document-content>"
    )
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    manifest = (
        f'<manifest:manifest xmlns:manifest="{namespace}:manifest:1.0"><manifest:file-entry manifest:full-path="/" '
        f'manifest:media-type="{kind}"/></manifest:manifest>'
    )
    return zipped({"mimetype": kind, "META-INF/manifest.xml": manifest, "content.xml": content})


def zipped(files: dict[str, str | bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()
