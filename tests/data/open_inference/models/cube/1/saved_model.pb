ã
¢u
.
Identity

input"T
output"T"	
Ttype
C
Placeholder
output"dtype"
dtypetype"
shapeshape:"serve*2.21.02v2.21.0-rc1-5-ga481b10260dƒ
•
INPUT0Placeholder*=
_output_shapes+
):'ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ*
dtype0*2
shape):'ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ
d
IdentityIdentityINPUT0*
T0*=
_output_shapes+
):'ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿ"ª*µ
serving_default¡
?
INPUT05
INPUT0:0'ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿB
OUTPUT07

Identity:0'ÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿÿtensorflow/serving/predict