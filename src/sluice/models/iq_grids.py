"""The grids of the IQ types of GGUF files: which combinations of neighbouring numbers are stored, by their indices.

A combination is a number whose digits stand for few values; the first of the neighbours is the lowest digit. The
indices of a grid count its combinations in ascending order, so that one bit for each possible one describes it.
"""

from __future__ import annotations

from base64 import b85decode
from functools import cache
from typing import NamedTuple
from zlib import decompress

import numpy as np
import torch


class Grid(NamedTuple):
    """What a grid is made of."""

    values: tuple[int, ...]
    """What the digits stand for: magnitudes, or numbers that are one higher than those of IQ1_S."""
    size: int
    """Neighbours of a combination."""


GRIDS = {
    "IQ2_XXS": Grid((8, 25, 43), 8),
    "IQ2_XS": Grid((8, 25, 43), 8),
    "IQ2_S": Grid((8, 25, 43), 8),
    "IQ1_S": Grid((0, 1, 2), 8),
    "IQ3_XXS": Grid((4, 12, 20, 28, 36, 44, 52, 62), 4),
    "IQ3_S": Grid((1, 3, 5, 7, 9, 11, 13, 15), 4),
}
"""In the order of their bits. IQ1_M has the grid of IQ1_S."""
USERS = (*GRIDS, "IQ1_M")
"""Types that need a grid."""
OF_KERNELS = 64
"""What stands for zero in the grids of kernels."""
STEP = 8
"""A number of IQ1_S in the grids of kernels: they are shifted by an eighth."""

BITS = (
    "c-nPWO^h5z6@FDzp_+EEs+VrX;#AvShfX`PjBkWXwKXFd`_dCli@Q%Ipa^m1r`_y^ac_`f3j~5oyRnmTJ92^#$c!aN$|*z~K-_Y$z=sI04@kLyj6"
    "`@<)jd74IIWr8o_h7(``)YXy{gK?AeZAb1s04!0szwxfClphkV&2TKmw*S97i$7Zw5fXOi6J(2<$}nv04(kCty<IH0A>%_@a##KEzFwOruGsCA+V"
    "6;T}$m$l&n%A*-%C)8;4P&XQBg`gx#Jl<Iyq>vTGq`8Wg&HXjEs!)!>2A%k@4V=&k|{94*+(g0mWN?-^XBpHlL(kI1!<=A3m#Hz3j-2tN}YZlpR4"
    "wG!atk=c%N$oV!iS#hdg7k+dgJ;IR7Q^AkWV2ferdNt91C};=2-14AIVT%ot$P^4BeGA!I&SE5sGq5|@yO4St&kkf<}==(`LNHQmgo62pQPc0%<?"
    ">&q!QUWn_{gnAOtca3Jrr$ghXb{CQ)+7zMT7kD~OKc(ja8S5oVT8QA_s*QItXE_vthSCpKp~?c=g*;$At2uBQAA@VZ0o3<Arf@!C}#aTCX>WnN!2"
    "PDuLP$&^?xvbSmLfY{`ZUC1`BE@T*Ecq!=(Vxnw45fr%v*CtU~4n;#q=QXwd2i|n)wIMU$o4f{X(<@DSQa2#i8VbW~Xx;Hc>J5_UE{D><$~GD0NJ"
    "I1*7hGA(!@L8sk!aSpBOP)QGGjLjNmsjIqcB-cgPAQFy~a;H6g$o~$u^z!Fk>ZSE*r#^yWFHV8X22rAlE?#hbx3_c9x<4BDdIDTe7*-LGOjZW_Q_"
    "4rg1*$mY_q;hrbBd6-^#;KQ|oD10Dv*@hoTH`}l8y6T;bKn&o+bA47i>O#{o;FgIFA6U}orMv+<ZKytThV9`v`aySjJ9*v7UfGkK;#=%l@Fla>9V"
    "89(Eu^y+)h%jO&lCIZwOrK4|Y04S#VU}T8IxPuPQ?DGx7{!J`zu&s7vX3yN%}%%~8(X3H#}ti;ISj@o8@xl9hRlR)aOJsc2H-?l+9N~*GH@a`^a%"
    "}_?3V@&hE@yyFXX^>f}qn{8H5hJ4H-qY^9}}Gx3K)0gd7oSX*q6lC=Co|IYXxF2Bnp)szcgrxTYgFXykeV_6a|j`Pge<;=p4w@WW0ESK05nOCK^Z"
    "qHNWnjL4WFtNp}U=7uYiTy|P^QDonE9Alr6Ltn1KHqDz1XAJ)k^O3zX*>CK!uTvek);R49lCI+(+Fx`Jbgc<!5|A!U`H5h!re~*O^0me5s%pL>5*"
    "6%aL8-=*6Ctl@spiK(l=T;qdVat4-fWLR1YY|_SqqI?+w&p|P`x@WepQPi!I5B3ojaS033=&*T2(JVva@I#@#tM4;uz3Z+{S8ADDOAo56gx6=+2e"
    "qPW$o?o*XRimq+hK%a8tg^csyIQj2Qol~h1-{%_4UB6YHX%ldL##UdhzFf7$*vOU|Y1wFoaS?!i;hA<i>evt(<5%(5lQJ<qql+C4v#<vr(hwrDw1"
    "e*vVtl{hwo6(CURAnNrpAI;N96Ruosx|?&^}Fg$yjWgu7vF=@6Eu$KE|hSts1M#t+7HzJGCKJ9?fw1N7T56i_xG#ubBQ{)tK%vWt@`j!P1L;m>-r"
    "xH3KWvX98^*7H%+{(i}H-Od~k31-zQCdvJsURA2e|N41MnDjf02(Jh?davj;zV^7LOne*cpnE+2mTKVSXq{TH5YJ^p(Y$@am~-B#RP94YU7w%mFA"
    "lY(7*>C&eQ@5V{Mkj0~R3uu{mZ>c|)SKcgRXyA?F%TNjd->usAK7H#!RewZ_@BH%ApYJ}Fr99O>jKja&WZ;=RC_%2Pvi<rpI<s4kiepeU7wKi}9+"
    "<IrO1sLfirb%hTXvOsEevglqP1=!n1g7<tJQ1w+O`1Ym5)A*w#C?JjVcu)qh9w!n<NEzMr(Tk*5D&GFTG>91Z~q+@9k4BK^JAwda;P%)|^K5gCp@"
    "hQ7tdr#gK3O`%bG~i7)-WKK)7IQDnla7m-M`ZBMob&8@l-LaMropgihU*|QYA^+h<}QgIXHm&V;HbEI_n&Zi2i0DXB&b<j{K&yC{80r(dth8qiN5"
    "zcqSJodD}5e%6cgCwjt#WIRL9&w7>dq{bO)KDc?uF?b)vVgdRRdZ6d+@^pc3Lf{u!t{6Qb})}qdphAjsHxXzRj>A7M%7wPn_=!vjDJY1-kk7~7X&"
    "9!*ExLaPZ(bXdK<cer!5em+(Y}y`ZFEJGs*@jHCnD)6gZL^@XB@y4NfHNp`d^o7kurcLNJ^Zz4g<L6WPO9oeUHojx*GrsC2Jj&-SeI0K^(+Zrb|k"
    "ygweAu59d6_bpauk#zm|q=q)wfp_K>s|~a}|C=z)iD(6v+L?Sv-Nw=G?Qb0yH$8ss`Quk22@(74HzWUs2O|;j^O6@4nQyTXH3zJTXg~|?p*hTMh`"
    "-J1Jb#<N0vTl&d^$o3q~wOrMvAa&qteHTBo4qE<2)<1kgwXE0ePZ~{B~aPgcmRJD?3{Z<=4QwOy{t5f(9PLJ*I@w4i4`~$_gTY>=`4dsi-Ex+zeZ"
    "m{G1A!NY5Oc#)KhMV)#>$3UeUNqE)<BQ?3{ueT5~V@ehvRKD)}0d1TjP+XBhzZBs!CymMedxD%N)^rp4dVkYtK9<U8W;1Kf}T*VzeVV1^>P?4I<?"
    ";`6Y_UtXZ!@C=wHcnT&S<vtFi5WE~)XV)POftm?k+fSVvyco%-Tg!L3)tDZid(k1Cotq_jK8;1jD}htI|fH2`YST)FP(Iq1pfoYK<We"
)
"""A bit for each combination: in base 85, and compressed."""


@cache
def grid(kind: str) -> torch.Tensor:
    """Return the combinations [indices, neighbours] uint8.

    Args:
        kind: a key of `GRIDS`.
    """
    return _grids()[kind]


@cache
def kernel_grids() -> torch.Tensor:
    """Return all grids in the form of `Grids` in `kernels/cpu/rare_blocks.h`, one behind the other: [bytes] uint8."""
    found = dict(_grids())
    found["IQ1_S"] = STEP * (found["IQ1_S"].to(torch.int8) - 1)
    return torch.cat([each.flatten().byte() + OF_KERNELS for each in found.values()])


@cache
def _grids() -> dict[str, torch.Tensor]:
    bits = np.unpackbits(np.frombuffer(decompress(b85decode(BITS)), dtype=np.uint8), bitorder="little")
    found, first = {}, 0
    for kind, (values, size) in GRIDS.items():
        count = len(values) ** size
        combinations = bits[first : first + count].nonzero()[0]
        first += -(-count // 8) * 8
        digits = combinations[:, None] // len(values) ** np.arange(size) % len(values)
        found[kind] = torch.from_numpy(np.array(values, dtype=np.uint8)[digits])
    return found
